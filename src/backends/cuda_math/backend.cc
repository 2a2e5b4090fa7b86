#include "backends/cuda_math/backend.h"

#include "backends/cuda_math/math_backend.h"

namespace regard::cuda_math {

const Backend& backend() {
  static const MathBackend instance(make_info(), kDeviceLauncher);
  return instance;
}

}  // namespace regard::cuda_math

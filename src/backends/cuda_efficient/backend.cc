#include "backends/cuda_efficient/backend.h"

#include "backends/cuda_efficient/efficient_backend.h"

namespace regard::cuda_efficient {

const Backend& backend() {
  static const EfficientBackend instance(make_info(), kDeviceLauncher);
  return instance;
}

}  // namespace regard::cuda_efficient

#include "backends/cuda_math/backend.h"

#include "backends/absent/backend.h"

// Stands in for backends/cuda_math/backend.cc where that is not built (cmake/cuda.cmake).

namespace regard::cuda_math {

const Backend& backend() {
  static const absent::AbsentBackend instance(BackendId::kMath, DeviceType::kCuda,
                                              "unfused and deterministic, every feature",
                                              absent::kNoCuda);
  return instance;
}

}  // namespace regard::cuda_math

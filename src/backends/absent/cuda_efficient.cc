#include "backends/cuda_efficient/backend.h"

#include "backends/absent/backend.h"

// Stands in for backends/cuda_efficient/backend.cc where that is not built (cmake/cuda.cmake).

namespace regard::cuda_efficient {

const Backend& backend() {
  static const absent::AbsentBackend instance(BackendId::kEfficient, DeviceType::kCuda,
                                              "tiled online softmax, constant extra memory",
                                              absent::kNoCuda);
  return instance;
}

}  // namespace regard::cuda_efficient

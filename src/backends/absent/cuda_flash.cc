#include "backends/absent/backend.h"
#include "backends/cuda_flash/backend.h"

// Stands in for backends/cuda_flash/backend.cc where that is not built (cmake/cuda.cmake).

namespace regard::cuda_flash {

const Backend& backend() {
  static const absent::AbsentBackend instance(BackendId::kFlash, DeviceType::kCuda,
                                              "tiled online softmax on tensor cores",
                                              absent::kNoCuda);
  return instance;
}

}  // namespace regard::cuda_flash

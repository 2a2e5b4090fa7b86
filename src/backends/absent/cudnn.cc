#include "backends/cudnn/backend.h"

#include "backends/absent/backend.h"

// Stands in for backends/cudnn/backend.cc where that is not built (cmake/cuda.cmake).

namespace regard::cudnn {

const Backend& backend() {
  static const absent::AbsentBackend instance(BackendId::kCudnn, DeviceType::kCuda,
                                              "cuDNN's attention graphs", REGARD_NO_CUDNN);
  return instance;
}

}  // namespace regard::cudnn

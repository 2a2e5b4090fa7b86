#include "platform/cuda_info.h"

namespace regard {

bool built_with_cuda() { return false; }
CudaInfo read_cuda_info() { return {}; }

}  // namespace regard

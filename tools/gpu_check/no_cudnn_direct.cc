#include "tools/gpu_check/cudnn_direct.h"

// In the place of cudnn_direct.cc where the headers of cuDNN or of its frontend are not there.

namespace regard::gpu_check {

DirectCall make_direct_cudnn(const AttentionParams&, const AttentionGradRequest&, bool,
                             DeviceMemory&) {
  return {nullptr, "built without cuDNN's headers", 0};
}

}  // namespace regard::gpu_check

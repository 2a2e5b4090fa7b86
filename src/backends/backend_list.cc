#include "backends/backend_list.h"

#include "backends/cpu_efficient/backend.h"
#include "backends/cpu_flash/backend.h"
#include "backends/cuda_efficient/backend.h"
#include "backends/cuda_flash/backend.h"
#include "backends/cuda_math/backend.h"
#include "backends/cudnn/backend.h"
#include "backends/math/backend.h"
#include "backends/math/row_reference.h"

// The only file that names every backend.

namespace regard {

std::span<const Backend* const> builtin_backends(DeviceType device, std::int32_t sm_version) {
  // Fastest first; MATH stands behind EFFICIENT because its memory grows with the scores.
  static const Backend* const cpu[] = {
      &flash::backend(),
      &efficient::backend(),
      &math::backend(),
      &cudnn::backend(),
  };
  // By architecture: cuDNN's kernels are written for 8.x to 10.x. Elsewhere it stands last, and
  // shows why it cannot run. Nothing here is measured yet.
  static const Backend* const cuda_with_cudnn[] = {
      &cudnn::backend(),
      &cuda_flash::backend(),
      &cuda_efficient::backend(),
      &cuda_math::backend(),
  };
  static const Backend* const cuda_without_cudnn[] = {
      &cuda_flash::backend(),
      &cuda_efficient::backend(),
      &cuda_math::backend(),
      &cudnn::backend(),
  };
  if (device == DeviceType::kCpu) return cpu;
  if (sm_version > 0 && (sm_version < 80 || sm_version >= 110)) return cuda_without_cudnn;
  return cuda_with_cudnn;
}

const RowReference& builtin_row_reference() { return math::row_reference(); }

}  // namespace regard

#include "backends/backend_list.h"

#include "backends/absent/backend.h"
#include "backends/cpu_efficient/backend.h"
#include "backends/cpu_flash/backend.h"
#include "backends/cuda_efficient/backend.h"
#include "backends/cuda_math/backend.h"
#include "backends/cudnn/backend.h"
#include "backends/math/backend.h"

// The only file that names every backend.

namespace regard {

std::span<const Backend* const> builtin_backends(DeviceType device) {
  // Fastest first; MATH stands behind EFFICIENT because its memory grows with the scores.
  static const Backend* const cpu[] = {
      &flash::backend(),
      &efficient::backend(),
      &math::backend(),
      &cudnn::backend(),
  };
  static const Backend* const cuda[] = {
      &cudnn::backend(),
      &absent::cuda_flash(),
      &cuda_efficient::backend(),
      &cuda_math::backend(),
  };
  return device == DeviceType::kCuda ? std::span<const Backend* const>(cuda)
                                     : std::span<const Backend* const>(cpu);
}

}  // namespace regard

#include "backends/cuda_flash/backend.h"

#include "backends/cuda_flash/flash_backend.h"

namespace regard::cuda_flash {

const Backend& backend() {
  static const FlashBackend instance(make_info(), kDeviceLauncher);
  return instance;
}

}  // namespace regard::cuda_flash

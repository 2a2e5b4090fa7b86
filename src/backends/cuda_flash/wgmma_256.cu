#include "backends/cuda_flash/wgmma_launch.h"

namespace regard::cuda_flash {

template void run_wgmma_dims<256>(WgmmaRunner&, const ForwardArgs&, Schedule);

}  // namespace regard::cuda_flash

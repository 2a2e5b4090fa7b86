#include "tests/cuda/host_wgmma_forward.h"

namespace regard::cuda_flash {

template void run_wgmma_dims<128>(HostWgmmaRunner&, const ForwardArgs&, Schedule);
template void run_wgmma_dims<256>(HostWgmmaRunner&, const ForwardArgs&, Schedule);

}  // namespace regard::cuda_flash

#include "tests/cuda/host_flash.h"

namespace regard::cuda_flash {

template void run_grad_dims<64>(HostRunner&, const BackwardArgs&);
template void run_grad_dims<96>(HostRunner&, const BackwardArgs&);
template void run_grad_dims<128>(HostRunner&, const BackwardArgs&);

}  // namespace regard::cuda_flash

#include "tests/cuda/host_flash.h"

namespace regard::cuda_flash {

template void run_grad_dims<192>(HostRunner&, const BackwardArgs&);
template void run_grad_dims<256>(HostRunner&, const BackwardArgs&);

}  // namespace regard::cuda_flash

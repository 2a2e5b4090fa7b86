#include "tests/cuda/host_flash.h"

namespace regard::cuda_flash {

template void run_grouped_dims<192>(HostRunner&, const ForwardArgs&);
template void run_grouped_dims<256>(HostRunner&, const ForwardArgs&);

}  // namespace regard::cuda_flash

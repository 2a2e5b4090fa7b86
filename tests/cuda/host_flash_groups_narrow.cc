#include "tests/cuda/host_flash.h"

namespace regard::cuda_flash {

template void run_grouped_dims<64>(HostRunner&, const ForwardArgs&);
template void run_grouped_dims<96>(HostRunner&, const ForwardArgs&);
template void run_grouped_dims<128>(HostRunner&, const ForwardArgs&);

}  // namespace regard::cuda_flash

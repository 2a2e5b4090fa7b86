#pragma once

#include "backends/cuda_flash/steps.cuh"
#include "tests/cuda/host_block.h"

// FLASH's kernels on the host, a unit for each of host_flash_*.cc: one unit of them all takes ten
// minutes.

namespace regard::cuda_flash {

using cuda_test::HostRunner;

extern template void run_dims<64>(HostRunner&, const ForwardArgs&);
extern template void run_dims<96>(HostRunner&, const ForwardArgs&);
extern template void run_dims<128>(HostRunner&, const ForwardArgs&);
extern template void run_dims<192>(HostRunner&, const ForwardArgs&);
extern template void run_dims<256>(HostRunner&, const ForwardArgs&);
extern template void run_coded_dims<64>(HostRunner&, const ForwardArgs&);
extern template void run_coded_dims<96>(HostRunner&, const ForwardArgs&);
extern template void run_coded_dims<128>(HostRunner&, const ForwardArgs&);
extern template void run_coded_dims<192>(HostRunner&, const ForwardArgs&);
extern template void run_coded_dims<256>(HostRunner&, const ForwardArgs&);
extern template void run_grouped_dims<64>(HostRunner&, const ForwardArgs&);
extern template void run_grouped_dims<96>(HostRunner&, const ForwardArgs&);
extern template void run_grouped_dims<128>(HostRunner&, const ForwardArgs&);
extern template void run_grouped_dims<192>(HostRunner&, const ForwardArgs&);
extern template void run_grouped_dims<256>(HostRunner&, const ForwardArgs&);
extern template void run_grad_dims<64>(HostRunner&, const BackwardArgs&);
extern template void run_grad_dims<96>(HostRunner&, const BackwardArgs&);
extern template void run_grad_dims<128>(HostRunner&, const BackwardArgs&);
extern template void run_grad_dims<192>(HostRunner&, const BackwardArgs&);
extern template void run_grad_dims<256>(HostRunner&, const BackwardArgs&);

}  // namespace regard::cuda_flash

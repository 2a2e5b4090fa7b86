#pragma once

#include "backends/cuda_flash/steps.cuh"
#include "cuda/launch.h"

// The steps whose kernels a unit of their own compiles, forward_<dims>.cu, codes_<dims>.cu,
// groups_<dims>.cu and backward_<dims>.cu.

namespace regard::cuda_flash {

extern template void run_dims<64>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_dims<96>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_dims<128>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_dims<192>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_dims<256>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_coded_dims<64>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_coded_dims<96>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_coded_dims<128>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_coded_dims<192>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_coded_dims<256>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_grouped_dims<64>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_grouped_dims<96>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_grouped_dims<128>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_grouped_dims<192>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_grouped_dims<256>(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_grad_dims<64>(cuda::DeviceRunner&, const BackwardArgs&);
extern template void run_grad_dims<96>(cuda::DeviceRunner&, const BackwardArgs&);
extern template void run_grad_dims<128>(cuda::DeviceRunner&, const BackwardArgs&);
extern template void run_grad_dims<192>(cuda::DeviceRunner&, const BackwardArgs&);
extern template void run_grad_dims<256>(cuda::DeviceRunner&, const BackwardArgs&);

}  // namespace regard::cuda_flash

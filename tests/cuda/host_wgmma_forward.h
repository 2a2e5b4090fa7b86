#pragma once

#include "backends/cuda_flash/wgmma_steps.cuh"
#include "tests/cuda/host_wgmma.h"

// FLASH's wgmma kernels on the host, compiled in host_wgmma_forward.cc.

namespace regard::cuda_flash {

using cuda_test::HostWgmmaRunner;

extern template void run_wgmma_dims<128>(HostWgmmaRunner&, const ForwardArgs&, Schedule);
extern template void run_wgmma_dims<256>(HostWgmmaRunner&, const ForwardArgs&, Schedule);

}  // namespace regard::cuda_flash

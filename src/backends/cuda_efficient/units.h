#pragma once

#include "backends/cuda_efficient/steps.cuh"
#include "cuda/launch.h"

// The steps whose kernels a unit of their own compiles, <step>.cu: one unit of them all takes two
// minutes.

namespace regard::cuda_efficient {

extern template void run_whole(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_splits(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_cached(cuda::DeviceRunner&, const ForwardArgs&);
extern template void run_products(cuda::DeviceRunner&, const BackwardArgs&);

}  // namespace regard::cuda_efficient

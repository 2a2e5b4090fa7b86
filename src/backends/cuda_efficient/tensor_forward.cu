#include "backends/cuda_efficient/units.cuh"

namespace regard::cuda_efficient {

template void run_tensor_forward(cuda::DeviceRunner&, const Problem&);

}  // namespace regard::cuda_efficient

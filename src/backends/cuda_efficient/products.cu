#include "backends/cuda_efficient/units.h"

namespace regard::cuda_efficient {

template void run_products(cuda::DeviceRunner&, const BackwardArgs&);

}  // namespace regard::cuda_efficient

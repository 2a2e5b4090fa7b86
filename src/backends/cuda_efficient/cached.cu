#include "backends/cuda_efficient/units.h"

namespace regard::cuda_efficient {

template void run_cached(cuda::DeviceRunner&, const ForwardArgs&);

}  // namespace regard::cuda_efficient

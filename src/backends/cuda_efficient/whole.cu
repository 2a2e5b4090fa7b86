#include "backends/cuda_efficient/units.h"

namespace regard::cuda_efficient {

template void run_whole(cuda::DeviceRunner&, const ForwardArgs&);

}  // namespace regard::cuda_efficient

#include "backends/cuda_flash/units.h"

namespace regard::cuda_flash {

template void run_grad_dims<192>(cuda::DeviceRunner&, const BackwardArgs&);

}  // namespace regard::cuda_flash

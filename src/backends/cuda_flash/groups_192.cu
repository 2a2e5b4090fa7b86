#include "backends/cuda_flash/units.h"

namespace regard::cuda_flash {

template void run_grouped_dims<192>(cuda::DeviceRunner&, const ForwardArgs&);

}  // namespace regard::cuda_flash

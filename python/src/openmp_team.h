#pragma once

#include "regard/request.h"

namespace regard::python {

/// Runs workers on the OpenMP team that PyTorch computes with; null where no libgomp is loaded, and
/// in a forked child, whose parent's team does not exist there. The team's size is what
/// torch.set_num_threads says.
Executor* openmp_team() noexcept;

}  // namespace regard::python

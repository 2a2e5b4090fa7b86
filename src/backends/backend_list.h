#pragma once

#include <cstdint>
#include <span>

#include "core/plan/row_reference.h"
#include "regard/backend.h"

namespace regard {

/// The backends of a device, each BackendId once, in built-in order: without a policy or a tuning
/// table the first that can run is chosen. They live as long as the program. `sm_version` orders
/// those of CUDA devices; 0 where there is none.
std::span<const Backend* const> builtin_backends(DeviceType device, std::int32_t sm_version);

/// MATH's rows, which self-checks of calls on CPUs compare with.
const RowReference& builtin_row_reference();

}  // namespace regard

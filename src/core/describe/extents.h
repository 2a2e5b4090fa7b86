#pragma once

#include "regard/params.h"

namespace regard {

/// The first tensor of the problem whose size in bytes does not fit 64 bits (an extent of 0 counts
/// as 1, so that no partial product overflows either), or null. Extents must be >= 0.
const char* first_overflowing_tensor(const AttentionParams& params) noexcept;

}  // namespace regard

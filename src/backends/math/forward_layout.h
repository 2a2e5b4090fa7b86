#pragma once

#include <cstdint>

#include "backends/math/kernel.h"
#include "regard/isa.h"
#include "regard/params.h"

namespace regard::math {

/// The forward kernel of the problem on a machine of `isa`.
const Kernel& kernel_of(const AttentionParams& p, Isa machine) noexcept;

/// Fills the offsets of args; returns a worker's bytes.
std::int64_t lay_out_forward(const AttentionParams& p, const Kernel& kernel,
                             std::int64_t row_blocks, ForwardArgs* args) noexcept;

}  // namespace regard::math

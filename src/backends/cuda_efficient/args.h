#pragma once

#include <cstdint>

#include "cuda/backward_args.h"
#include "cuda/forward_args.h"

namespace regard::cuda_efficient {

using cuda::BackwardArgs;
using cuda::ForwardArgs;

/// Columns that a block's threads sum: one class of head dims each. Wider ones are cut into ranges,
/// each with scores of its own.
inline constexpr std::int64_t kNarrow = 64;
inline constexpr std::int64_t kWide = 128;

inline bool is_wide(std::int64_t columns) { return columns > kNarrow; }

}  // namespace regard::cuda_efficient

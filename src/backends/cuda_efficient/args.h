#pragma once

#include <cstdint>

#include "cuda/forward_args.h"
#include "problem/grad_problem.h"

namespace regard::cuda_efficient {

/// A backward call: the problem, and a sum for each row in the workspace.
struct BackwardArgs {
  problem::GradProblem grad{};
  float* delta = nullptr;  // [B][Hq][Sq]: the sum of d_out * out, less d_lse
};

using cuda::ForwardArgs;

/// Columns that a block's threads sum: one class of head dims each. Wider ones are cut into ranges,
/// each with scores of its own.
inline constexpr std::int64_t kNarrow = 64;
inline constexpr std::int64_t kWide = 128;

inline bool is_wide(std::int64_t columns) { return columns > kNarrow; }

}  // namespace regard::cuda_efficient

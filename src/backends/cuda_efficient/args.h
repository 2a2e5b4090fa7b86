#pragma once

#include <cstdint>

#include "problem/grad_problem.h"

namespace regard::cuda_efficient {

/// A backward call: the problem, and a sum for each row in the workspace.
struct BackwardArgs {
  problem::GradProblem grad{};
  float* delta = nullptr;  // [B][Hq][Sq]: the sum of d_out * out, less d_lse
};

/// Columns that a block's threads sum: one class of head dims each. Wider ones are cut into ranges,
/// each with scores of its own.
inline constexpr std::int64_t kNarrow = 64;
inline constexpr std::int64_t kWide = 128;

inline bool is_wide(std::int64_t columns) { return columns > kNarrow; }

/// The least compute capability * 10 whose kernels multiply on tensor cores: 80, or the least above
/// that a build is for.
#if defined(REGARD_TENSOR_SM)
inline constexpr std::int32_t kTensorSm = REGARD_TENSOR_SM;
#else
inline constexpr std::int32_t kTensorSm = 80;
#endif

}  // namespace regard::cuda_efficient

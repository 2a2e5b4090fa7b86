#pragma once

#include <cstdint>

#include "problem/grad_problem.h"

namespace regard::cuda_efficient {

/// A backward call: the problem, and a sum for each row in the workspace.
struct BackwardArgs {
  problem::GradProblem grad{};
  float* delta = nullptr;  // [B][Hq][Sq]: the sum of d_out * out, less d_lse
};

/// Up to so many rows (queries times the heads of a group) a call's keys come in splits, each a
/// block's: a device has more multiprocessors than a decode has heads.
inline constexpr std::int64_t kSplitRows = 32;

/// What the splits leave to be merged, in the workspace.
struct Splits {
  std::int64_t row_max = 1;  // of a sequence; 1: keys are not divided
  float* sums = nullptr;     // [B][Hkv][most][row][dv]: products of probabilities and values
  float* stats = nullptr;    // [B][Hkv][most][row][2]: the maximum, the sum of the probabilities
};

struct ForwardArgs {
  problem::Problem problem{};
  Splits splits{};
};

/// Columns that a block's threads sum: one class of head dims each. Wider ones are cut into ranges,
/// each with scores of its own.
inline constexpr std::int64_t kNarrow = 64;
inline constexpr std::int64_t kWide = 128;

inline bool is_wide(std::int64_t columns) { return columns > kNarrow; }

}  // namespace regard::cuda_efficient

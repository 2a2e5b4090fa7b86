#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace regard::cuda {

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
  std::int64_t kv_entries = 0;  // extent 0 of k and v: sequences, pages, or entries of a cache
  Splits splits{};
};

}  // namespace regard::cuda

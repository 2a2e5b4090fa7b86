#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "semantics/splits.h"

// Which kernel serves a sequence, and how few rows over many keys are divided among workers:
// functions of the sequence's own rows and length, so that a sequence has the same bits alone, in
// any batch and on any number of threads.

namespace regard::cpu {

using semantics::common_keys;
using semantics::kMaxSplits;
using semantics::split_count;
using semantics::split_keys;

/// Up to so many rows (queries times the heads of a group) lanes may lie along head_dim where a
/// row block has `width` rows: they are one row block. From there on rows in lanes are faster.
REGARD_KERNEL_FN constexpr std::int64_t max_decode_rows(std::int64_t width) {
  constexpr std::int64_t kWide = 48;  // 32 registers
  if (width >= kWide) return 16;
  return width < 12 ? width : 12;
}

/// Keys of a tile there: rows of K and V of a tile, and K's next, are at most 3 x 16 in a set of
/// the L2 where they are 2 or 4 KB apart. 32 and 96 keys gave 0.94 and 0.80 of the rate in bf16.
/// Tiles of a backend are whole multiples: splits of few rows end where tiles of either kind do.
inline constexpr std::int64_t kDecodeTileKv = 16;

/// Up to so many rows the keys are split.
inline constexpr std::int64_t kSplitRows = 64;

/// Steps that the splits are taken in where they are `runs` runs of neighbours, one part of each
/// run in turn: so many workers side by side go on where they were, which they have prefetched.
REGARD_KERNEL_FN constexpr std::int64_t split_steps(std::int64_t splits, std::int64_t runs) {
  return (splits + runs - 1) / runs * runs;
}

/// The part of a step; past the last one where runs are uneven.
REGARD_KERNEL_FN constexpr std::int64_t split_of_step(std::int64_t splits, std::int64_t runs,
                                                      std::int64_t step) {
  return step % runs * (split_steps(splits, runs) / runs) + step / runs;
}

}  // namespace regard::cpu

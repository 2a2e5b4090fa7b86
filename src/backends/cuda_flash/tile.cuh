#pragma once

#include <cstdint>

#include "backends/cuda_flash/args.h"
#include "cuda/lane_scores.cuh"
#include "cuda/swizzle.cuh"

// What a block of FLASH's forward holds, and the online softmax of a lane's rows.

namespace regard::cuda_flash {

using cuda::Element;
using cuda::kLaneRows;
using cuda::kWarp;
using cuda::kWarpRows;
using cuda::Problem;
using cuda::Sequence;
using cuda::WarpSums;

/// Sizes of a block: 32 rows a warp where its outputs leave registers for them, for each K and V
/// that a warp reads then serves twice as many.
template <int kDims, Kind kKind>
struct Shape {
  static constexpr bool kEdits = kKind != Kind::kPlain;
  static constexpr bool kSplit = is_split(kKind), kCodes = has_codes(kKind);
  static constexpr bool kGroups = has_groups(kKind);
  static constexpr int kRowBlocks = !kEdits && kDims <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kRows = kSplit ? static_cast<int>(cuda::kSplitRows) : 128;
  static constexpr int kThreads = kRows / kWarpRows / kRowBlocks * kWarp;
  static constexpr int kKeys = tile_keys(kCodes, kDims);
  // Two blocks on a multiprocessor of compute capability 8.0 (164 KB) up to 128 dims, and one of
  // 163 KB at 256.
  static constexpr int kStages =
      (kKind == Kind::kPlain && kDims == 128) || (kKind == Kind::kEdited && kDims != 192) ? 2 : 3;
};

/// What a row sees by arithmetic, and all else that edits need of it where there are some.
template <bool kEdits>
struct Bounds;
template <>
struct Bounds<false> {
  using Row = semantics::KeyRange;
  REGARD_DEVICE_FN Row of(const cuda::RowFacts<float>& facts) { return {facts.lo, facts.hi}; }
};
template <>
struct Bounds<true> {
  using Row = cuda::RowFacts<float>;
  REGARD_DEVICE_FN Row of(const cuda::RowFacts<float>& facts) { return facts; }
};

/// Shared memory of a block: what its tiles have in common, bounds of its rows, its queries, and
/// stages of a tile of keys and a tile of values. Where rows lie in q stands in the last stage
/// until that is used. Stages of codes have their scales behind them, and products read one tile
/// more, in which codes are 16-bit numbers.
template <int kColumns, Kind kKind>
struct Layout {
  using S = Shape<kColumns, kKind>;
  using Row = typename Bounds<S::kEdits>::Row;
  // For TileWalk.
  static constexpr int kDims = kColumns, kRows = S::kRows, kKeys = S::kKeys;
  static constexpr int kThreads = S::kThreads, kStages = S::kStages;
  static constexpr bool kSplit = S::kSplit, kCodes = S::kCodes, kGroups = S::kGroups;
  static constexpr bool kPaged = S::kEdits, kHasTree = S::kEdits;

  static constexpr int kBytesOfRow = kDims * static_cast<int>(sizeof(std::uint16_t));
  static constexpr int kTileBytes = 2 * S::kKeys * kBytesOfRow;
  // Of a row of codes, and of its scales: one, or two for each group.
  static constexpr int kCodeBytes = kGroups ? kDims / 2 : kDims;
  static constexpr int kScales = kGroups ? kDims / static_cast<int>(problem::kGroup) * 2 : 1;
  static constexpr int kScaleBytes = kScales * static_cast<int>(sizeof(float));
  static constexpr int kStageBytes =
      kCodes ? 2 * S::kKeys * (kCodeBytes + kScaleBytes) : kTileBytes;
  static constexpr int kWalkBytes = kCodes ? 256 : 128;
  static constexpr int kAtChannels = kWalkBytes;  // scales of K's columns
  static constexpr int kAtBounds =
      kAtChannels + (kCodes ? kDims * static_cast<int>(sizeof(float)) : 0);
  static constexpr int kAtQueries = kAtBounds + S::kRows * static_cast<int>(sizeof(Row));
  static constexpr int kAtStages = kAtQueries + S::kRows * kBytesOfRow;
  static constexpr int kAtPlaces = kAtStages + (S::kStages - 1) * kStageBytes;
  static constexpr int kAtTile = kAtStages + S::kStages * kStageBytes;
  static constexpr int kBytes = kAtTile + (kCodes ? kTileBytes : 0);
  static_assert(S::kRows * static_cast<int>(sizeof(std::int64_t)) <= kStageBytes);
  static_assert(kAtQueries % 128 == 0 && kAtStages % 128 == 0 && kStageBytes % 128 == 0);
};

/// The weight of a probability of 1 in sums and products, as a power of two: the smallest of f16 is
/// then 2^-39, not 2^-24.
template <Element kType>
inline constexpr int kWeightLog2 = kType == Element::kF16 ? 15 : 0;
template <Element kType>
inline constexpr float kWeight = static_cast<float>(1 << kWeightLog2<kType>);

/// The online softmax of a lane's rows. `sum` is the lane's own part of it, in kWeight.
template <int kRowBlocks>
struct Softmax {
  float max[kRowBlocks][kLaneRows];
  float sum[kRowBlocks][kLaneRows];
};

/// Scores become probabilities, kWeight * 2^((score - maximum) * factor); what was summed so far is
/// multiplied by `rescale`, exactly 1 where the maximum stands. kMarks: hidden ones are marked.
template <Element kType, bool kMarks, int kKeys, class Block>
REGARD_DEVICE_FN void exponentiate(const Block& block, float factor, float (&max)[kLaneRows],
                                   float (&sum)[kLaneRows], WarpSums<kKeys>* scores,
                                   float (&rescale)[kLaneRows]) {
  constexpr auto kShift = static_cast<float>(kWeightLog2<kType>);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    float row_max = max[i];  // NaN is passed over here and reaches the sum
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 4; ++n) {
      const float score = scores->at[n / 2][2 * i + n % 2];
      row_max = __builtin_fmaxf(score, row_max);
    }
    row_max = cuda::max_of_lanes(block, row_max);
    const float subtrahend = cuda::subtrahend(row_max);
    rescale[i] = cuda::exp2_flushed((max[i] - subtrahend) * factor);
    max[i] = row_max;
    float tile_sum = 0.0f;
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 4; ++n) {
      float& score = scores->at[n / 2][2 * i + n % 2];
      const bool hidden = kMarks && score == cuda::minus_infinity<float>();
      const float prob = cuda::exp2_flushed(__builtin_fmaf(score - subtrahend, factor, kShift));
      score = hidden ? cuda::hidden_value<float>() : prob;
      tile_sum += score;
    }
    sum[i] = __builtin_fmaf(sum[i], rescale[i], tile_sum);
  }
}

/// Whether a sum is an infinity or NaN: some value was, behind a mask or not.
template <int kDims, int kRowBlocks>
REGARD_DEVICE_FN bool has_non_finite(const WarpSums<kDims> (&sums)[kRowBlocks]) {
  float probe = 0.0f;
  REGARD_DEVICE_UNROLL
  for (int m = 0; m < kRowBlocks; ++m) {
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kDims / 2; ++n) {
      probe = __builtin_fmaf(sums[m].at[n / 4][n % 4], 0.0f, probe);
    }
  }
  return probe != 0.0f;
}

}  // namespace regard::cuda_flash

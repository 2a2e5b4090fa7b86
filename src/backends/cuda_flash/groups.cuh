#pragma once

#include <cstdint>

#include "backends/cuda_flash/channels.cuh"
#include "backends/cuda_flash/codes.cuh"

// Keys and values of u4: every 32 columns of a row have a scale and a minimum, and an element is
// code * scale + minimum. So products with keys are summed group by group, and probabilities become
// an operand for each group of values; minima multiply sums of queries, and of probabilities.

namespace regard::cuda_flash {

inline constexpr int kGroupColumns = static_cast<int>(problem::kGroup);
/// Subtracted from codes of values: P * code is rounded, and code - 8 is at most half as large.
inline constexpr float kValueCentre = 8.0f;

/// In shared memory the scale of group g of key j is element 2 g kKeys + j, the minimum the one
/// kKeys behind it. kThreads / kKeys threads copy those of a key, 0 where there is none.
template <int kKeys, int kColumns, int kThreads, class Block, class Rows, class Shared>
REGARD_DEVICE_FN void begin_group_scales(const Block& block, const Rows& rows, std::int64_t columns,
                                         Shared to) {
  constexpr int kWords = kColumns / kGroupColumns * 2;
  static_assert(kThreads % kKeys == 0);
  const int r = block.thread() % kKeys;
  const char* const row = Rows::row(rows, r);
  REGARD_DEVICE_NO_UNROLL
  for (int n = block.thread() / kKeys; n < kWords; n += kThreads / kKeys) {
    const bool exists = row != nullptr && n / 2 * kGroupColumns < columns;
    block.copy_word_async(to, n * kKeys + r, exists ? row + n * sizeof(float) : nullptr);
  }
}

/// kRows rows of codes, in words of eight, become an operand's rows: each code less `centre`.
template <Element kType, int kRows, int kColumns, int kThreads, class Block, class Codes,
          class Shared>
REGARD_DEVICE_FN void widen_groups(const Block& block, float centre, Codes codes, Shared to) {
  constexpr int kChunks = kColumns / cuda::kChunk;
  const float less = 8388608.0f + centre;  // 2^23: its unit is 1
  REGARD_DEVICE_NO_UNROLL
  for (int n = block.thread(); n < kRows * kChunks; n += kThreads) {
    const std::uint32_t eight = codes[n];
    const auto number = [&](int x) {
      return problem::f32_of(0x4b000000u | ((eight >> (4 * x)) & 15u)) - less;
    };
    cuda::Vec4<std::uint32_t> chunk;
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) chunk.at[x] = cuda::pack<kType>(number(2 * x), number(2 * x + 1));
    store4(to, cuda::Swizzle<kColumns>::at(n / kChunks, n % kChunks) / 2, chunk);
  }
}

/// scores = queries right^T of kDims columns, where `right` has kKeys rows of codes.
template <int kDims, int kKeys, class Block, class Queries, class Shared, class Scales>
REGARD_DEVICE_FN void multiply_groups(const Block& block, const Queries& queries, Shared right,
                                      Scales scales, cuda::WarpSums<kKeys>* scores) {
  const int at_right = cuda::right_at<kDims>(block);
  cuda::clear(scores);
  REGARD_DEVICE_UNROLL
  for (int g = 0; g < kDims / kGroupColumns; ++g) {
    cuda::WarpSums<kKeys> group;
    float sums[4] = {};
    multiply_two_steps<kDims, true>(block, queries, right, at_right, 2 * g, &group, sums);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      const int at = 2 * g * kKeys + n * 8 + cuda::lane_column(block);
      const float scale[2] = {scales[at], scales[at + 1]};
      const float minimum[2] = {scales[at + kKeys], scales[at + kKeys + 1]};
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) {
        float& score = scores->at[n][x];
        score = __builtin_fmaf(group.at[n][x], scale[x % 2], score);
        score = __builtin_fmaf(sums[x / 2 * 2], minimum[x % 2], score);
      }
    }
  }
}

/// A group of values' operand: probabilities times scales, in `unit`, and those times minima,
/// summed over the lane's keys.
template <int kKeys>
struct GroupProbs {
  cuda::WarpRows<kKeys> left;
  float of_minima[cuda::kLaneRows];
  float unit;
};

template <Element kType, int kKeys, class Block, class Scales>
REGARD_DEVICE_FN GroupProbs<kKeys> group_probs(const Block& block,
                                               const cuda::WarpSums<kKeys>& probs, Scales scales,
                                               int first) {
  ScaleUnit unit;
  if constexpr (kType == Element::kF16) unit = unit_of<kKeys>(block, scales, first);
  GroupProbs<kKeys> group{};
  cuda::WarpSums<kKeys> scaled;
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kKeys / 8; ++n) {
    const int at = first + n * 8 + cuda::lane_column(block);
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 2; ++x) {
      const float scale = scales[at + x];
      const float minimum = __builtin_fmaf(kValueCentre, scale, scales[at + kKeys + x]);
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < cuda::kLaneRows; ++i) {
        const float prob = probs.at[n][2 * i + x];
        scaled.at[n][2 * i + x] = prob * (scale * unit.by);
        group.of_minima[i] = __builtin_fmaf(prob, minimum, group.of_minima[i]);
      }
    }
  }
  group.left = cuda::as_operand<kType>(scaled, 1.0f);
  group.unit = unit.unit;
  return group;
}

/// sums = sums * rescale[own row] + probabilities times values, `rows` being codes of kKeys values.
template <Element kType, int kKeys, int kDims, class Block, class Shared, class Scales>
REGARD_DEVICE_FN void rescale_add_groups(const Block& block, const cuda::WarpSums<kKeys>& probs,
                                         Shared rows, Scales scales,
                                         const float (&rescale)[cuda::kLaneRows],
                                         cuda::WarpSums<kDims>* sums) {
  const int at = cuda::left_at<kDims>(block, 0) ^ cuda::zero_of(rescale[0]);
  REGARD_DEVICE_UNROLL
  for (int g = 0; g < kDims / kGroupColumns; ++g) {
    const GroupProbs<kKeys> group = group_probs<kType>(block, probs, scales, 2 * g * kKeys);
    float of_minima[cuda::kLaneRows];
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < cuda::kLaneRows; ++i) {
      of_minima[i] = cuda::sum_of_lanes(block, group.of_minima[i]);
    }
    const cuda::WarpRows<kKeys> left[1] = {group.left};
    REGARD_DEVICE_UNROLL
    for (int n = 2 * g; n < 2 * g + 2; ++n) {
      float product[1][2][4] = {};
      cuda::multiply_columns<kType, kDims>(block, left, rows, at, n, product);
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 8; ++x) {
        float& sum = sums->at[2 * n + x / 4][x % 4];
        const int i = x % 4 / 2;
        const float added = __builtin_fmaf(product[0][x / 4][x % 4], group.unit, of_minima[i]);
        sum = __builtin_fmaf(sum, rescale[i], added);
      }
    }
  }
}

/// The number of a value's code in column `column`, which add_visible_terms() calls for.
template <int kKeys, class Scales>
struct GroupNumbers {
  Scales scales;

  REGARD_DEVICE_FN float of(const GroupNumbers& numbers, int key, int column, float code) {
    const int at = column / kGroupColumns * 2 * kKeys + key;
    return __builtin_fmaf(code + kValueCentre, numbers.scales[at], numbers.scales[at + kKeys]);
  }
};

}  // namespace regard::cuda_flash

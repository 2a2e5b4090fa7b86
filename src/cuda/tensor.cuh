#pragma once

#include <cstdint>

#include "cuda/reduce.cuh"

// Products by tensor cores, of bf16 or f16 in f32: a warp has 16 rows. Of a 16 x 8 result lane l
// holds rows l / 4 (sums 0, 1) and l / 4 + 8 (sums 2, 3) of columns 2 (l % 4) and the next. A left
// operand of 16 x 16 is four such blocks of 8 x 8 (rows, rows + 8, and both of columns + 8), pairs
// of neighbouring columns in a word; a right one is 16 x 8, pairs of neighbouring rows. (PTX ISA,
// "Matrix Fragments for mma.m16n8k16".)

namespace regard::cuda {

inline constexpr int kWarpRows = 16;
inline constexpr int kLaneRows = 2;  // of a lane, 8 apart
inline constexpr int kChunk = 8;     // elements of 16 bytes

/// Sums of a warp's rows and kColumns columns, eight columns after eight.
template <int kColumns>
struct WarpSums {
  float at[kColumns / 8][4];
};

template <int kColumns>
REGARD_DEVICE_FN void clear(WarpSums<kColumns>* sums) {
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kColumns / 8; ++n) {
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) sums->at[n][x] = 0.0f;
  }
}

/// A lane's columns change places in its registers: the second becomes the first, the first the
/// last. A loop that is not unrolled can so pass over them all.
template <int kColumns, int kRowBlocks>
REGARD_DEVICE_FN void turn(WarpSums<kColumns> (&sums)[kRowBlocks]) {
  constexpr int kLast = kColumns / 4 - 1;
  REGARD_DEVICE_UNROLL
  for (int row = 0; row < kRowBlocks * kLaneRows; ++row) {
    float(&of)[kColumns / 8][4] = sums[row / kLaneRows].at;
    const int i = row % kLaneRows * 2;
    const float first = of[0][i];
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kLast; ++c) of[c / 2][i + c % 2] = of[(c + 1) / 2][i + (c + 1) % 2];
    of[kLast / 2][i + kLast % 2] = first;
  }
}

/// Calls f(column) for a lane's columns of the sums, of which it finds the elements of row block m
/// and row i in at[0][2 * i]. One copy of the code: f may be long.
template <int kColumns, int kRowBlocks, class F>
REGARD_DEVICE_FN void for_each_column(WarpSums<kColumns> (&sums)[kRowBlocks], F f) {
  REGARD_DEVICE_NO_UNROLL
  for (int c = 0; c < kColumns / 4; ++c) {
    f(c / 2 * 8 + c % 2);
    turn(sums);
  }
}

/// The first of a lane's columns in every eight.
template <class Block>
REGARD_DEVICE_FN int lane_column(const Block& block) {
  return block.thread() % 4 * 2;
}

/// The sum, or the greatest value, over the four lanes that share a row; NaN is passed over.
template <class Block>
REGARD_DEVICE_FN float sum_of_lanes(const Block& block, float value) {
  value += block.shuffle_xor(value, 1);
  value += block.shuffle_xor(value, 2);
  return value;
}
template <class Block>
REGARD_DEVICE_FN float max_of_lanes(const Block& block, float value) {
  REGARD_DEVICE_UNROLL
  for (int lanes = 1; lanes <= 2; lanes *= 2) {
    const float other = block.shuffle_xor(value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

/// Two numbers in a word, rounded to nearest even; `low` is the first in memory.
template <Element kType>
REGARD_DEVICE_FN std::uint32_t pack(float low, float high) {
  static_assert(kType == Element::kBf16 || kType == Element::kF16);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t word;
  if constexpr (kType == Element::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  if constexpr (kType == Element::kBf16) {
    return problem::to_bf16(low) | static_cast<std::uint32_t>(problem::to_bf16(high)) << 16;
  } else {
    return problem::to_f16(low) | static_cast<std::uint32_t>(problem::to_f16(high)) << 16;
  }
#endif
}

template <Element kType>
REGARD_DEVICE_FN float widen(std::uint16_t x) {
  return kType == Element::kBf16 ? problem::from_bf16(x) : problem::from_f16(x);
}

/// A warp's rows as a left operand of kDepth columns.
template <int kDepth>
struct WarpRows {
  std::uint32_t at[kDepth / 16][4];
};

/// Sums of kTerms columns as a left operand: times factor[own row], rounded.
template <Element kType, int kTerms>
REGARD_DEVICE_FN WarpRows<kTerms> as_operand(const WarpSums<kTerms>& sums,
                                             const float (&factor)[kLaneRows]) {
  WarpRows<kTerms> rows;
  REGARD_DEVICE_UNROLL
  for (int k = 0; k < kTerms / 16; ++k) {
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) {
      const float(&of)[4] = sums.at[2 * k + x / 2];
      const float by = factor[x % 2];
      rows.at[k][x] = pack<kType>(of[x % 2 * 2] * by, of[x % 2 * 2 + 1] * by);
    }
  }
  return rows;
}
template <Element kType, int kTerms>
REGARD_DEVICE_FN WarpRows<kTerms> as_operand(const WarpSums<kTerms>& sums, float factor) {
  return as_operand<kType>(sums, {factor, factor});
}

/// What a lane's rows of an operand are multiplied by, a power of two each, and its inverse.
struct RowScales {
  float scale[kLaneRows], inverse[kLaneRows];
};

/// Sums of kTerms columns become a left operand, each row's largest magnitude in [2^14, 2^15): f16
/// has no numbers below 2^-24, and gradients of scores may all be smaller. Those of a row that are
/// 2^-39 of the largest become 0.
template <Element kType, int kTerms, class Block>
REGARD_DEVICE_FN WarpRows<kTerms> as_scaled_operand(const Block& block,
                                                    const WarpSums<kTerms>& sums,
                                                    RowScales* scales) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    float largest = 0.0f;
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kTerms / 4; ++n) {
      largest = __builtin_fmaxf(largest, __builtin_fabsf(sums.at[n / 2][2 * i + n % 2]));
    }
    largest = max_of_lanes(block, largest);
    // Held to scales whose inverses are numbers of f32 with all of their bits.
    const std::uint32_t exponent = problem::bits_of(largest) >> 23;
    const std::uint32_t held = exponent < 20 ? 20 : exponent > 234 ? 234 : exponent;
    scales->scale[i] = problem::f32_of((268u - held) << 23);
    scales->inverse[i] = problem::f32_of((held - 14u) << 23);
  }
  return as_operand<kType>(sums, scales->scale);
}

/// Elements column and column + 1 of a row of `columns`, in f32 or in 16 bits.
template <Element kType>
REGARD_DEVICE_FN void store_pair(Element type, char* row, std::int64_t column, std::int64_t columns,
                                 float first, float second) {
  if (column >= columns) return;
  const bool both = column + 1 < columns;
  if (type == Element::kF32) {
    auto* const to = reinterpret_cast<float*>(row) + column;
    to[0] = first;
    if (both) to[1] = second;
    return;
  }
  const std::uint32_t word = pack<kType>(first, second);
  auto* const to = reinterpret_cast<std::uint16_t*>(row) + column;
  to[0] = static_cast<std::uint16_t>(word);
  if (both) to[1] = static_cast<std::uint16_t>(word >> 16);
}

/// Writes sums * scale[own row] to the lane's rows `row` and row + 8.
template <Element kType, int kColumns, class Block, class Rows>
REGARD_DEVICE_FN void write_sums(const Block& block, const Rows& rows, int row,
                                 const WarpSums<kColumns>& sums, const float (&scale)[kLaneRows]) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    char* const to = Rows::row(rows, row + i * 8);
    if (to == nullptr) continue;
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      const int c = n * 8 + lane_column(block);
      store_pair<kType>(rows.type, to, c, rows.columns, sums.at[n][2 * i] * scale[i],
                        sums.at[n][2 * i + 1] * scale[i]);
    }
  }
}

}  // namespace regard::cuda

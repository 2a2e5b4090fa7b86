#pragma once

#include <cstdint>

#include "cuda/tensor.cuh"

// Rows of kColumns 16-bit elements in shared memory without padding: the chunks of 16 bytes of a
// row change places by the row's number, so that the eight rows of an ldmatrix lie in eight groups
// of banks. Copies of rows, and operands for tensor cores from them.

namespace regard::cuda {

template <int kColumns>
struct Swizzle {
  static_assert(kColumns % 64 == 0 || kColumns == 96);
  static constexpr int kChunks = kColumns / kChunk;
  // Chunks that change places. Rows of 96 elements begin in two groups of banks by turns.
  static constexpr int kPeriod = kColumns % 64 == 0 ? 8 : 4;

  /// Where a chunk of a row begins, in elements.
  REGARD_DEVICE_FN int at(int row, int chunk) {
    return row * kColumns + (chunk ^ (row / (8 / kPeriod) & (kPeriod - 1))) * kChunk;
  }
  /// The same of chunk 2 step + half of the row, where `first` is that of step 0: constants alone
  /// are added for each step, and for 16 rows more.
  REGARD_DEVICE_FN int at_step(int first, int step) {
    const int chunk = step * 2;
    return (first ^ chunk % kPeriod * kChunk) + chunk / kPeriod * kPeriod * kChunk;
  }
};

/// Sums of 256 columns leave a backward no registers for addresses, which were spilled: there each
/// product computes its own again.
template <int kColumns>
inline constexpr bool kRecomputesAddresses = kColumns >= 256;

template <bool kAgain, class Block>
REGARD_DEVICE_FN int lane_of(const Block& block) {
  const int thread = kAgain ? opaque(block.thread()) : block.thread();
  return thread & (kWarp - 1);
}

/// Where a lane's row of an operand begins; see load_matrices().
template <int kColumns, bool kAgain = false, class Block>
REGARD_DEVICE_FN int left_at(const Block& block, int row) {
  const int lane = lane_of<kAgain>(block);
  return opaque(Swizzle<kColumns>::at(row + lane % 16, lane / 16));
}
template <int kColumns, bool kAgain = false, class Block>
REGARD_DEVICE_FN int right_at(const Block& block) {
  const int lane = lane_of<kAgain>(block);
  return opaque(Swizzle<kColumns>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2));
}

/// The largest power of two that is at most n.
REGARD_KERNEL_FN constexpr int power_below(int n) { return n < 2 ? 1 : 2 * power_below(n / 2); }

/// Begins to copy kRows rows, 0 where there are none and behind their `columns`. Addresses and
/// columns are multiples of 8 elements. Each thread has one column of chunks; with 96 and 192
/// columns a quarter of the threads has none.
template <int kRows, int kColumns, int kBlockThreads, class Block, class Rows, class Shared>
REGARD_DEVICE_FN void begin_rows(const Block& block, const Rows& rows, Shared to) {
  constexpr int kChunks = Swizzle<kColumns>::kChunks;
  constexpr int kStep = power_below(kBlockThreads / kChunks);
  static_assert(kRows % kStep == 0);
  const auto thread = static_cast<unsigned>(opaque(block.thread()));
  if (kStep * kChunks < kBlockThreads && thread >= kStep * kChunks) return;
  const auto first = static_cast<int>(thread / kChunks), chunk = static_cast<int>(thread % kChunks);
  const bool has_columns = chunk * kChunk < rows.columns;
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kRows / kStep; ++n) {
    const int r = first + n * kStep;
    const char* const row = Rows::row(rows, r);
    const bool exists = row != nullptr && has_columns;
    const int at = Swizzle<kColumns>::at(r, chunk);
    block.copy_async(to, at, exists ? row + chunk * kChunk * 2 : nullptr);
  }
}

/// Columns [16 step, 16 step + 16) of the 16 rows from 16 index on behind those of `at`, which is
/// left_at(): a left operand; with right_at() two right operands of those columns, to[0] and to[1]
/// of the first eight rows.
template <int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void load_step(const Block& block, Shared rows, int at, int index, int step,
                                std::uint32_t (&to)[4]) {
  block.load_matrices(rows, Swizzle<kColumns>::at_step(at, step) + index * 16 * kColumns, to);
}

/// Of the same rows, with left_at(), two right operands: to[0] and to[1] are columns [16 step,
/// 16 step + 8).
template <int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void load_step_transposed(const Block& block, Shared rows, int at, int index,
                                           int step, std::uint32_t (&to)[4]) {
  block.load_transposed(rows, Swizzle<kColumns>::at_step(at, step) + index * 16 * kColumns, to);
}

/// Columns of 16 that are summed in the accumulators of tensor cores, which cut sums off: as many
/// as cost lse no more than f32's own rounding where all products have one sign.
template <Element kType>
inline constexpr int kExactSteps = kType == Element::kF16 ? 1 : 4;

/// scores = left right^T of kDims columns: kRowBlocks times 16 rows from `row` on, kKeys rows.
template <Element kType, int kDims, bool kAgain = false, int kKeys, int kRowBlocks, class Block,
          class Shared>
REGARD_DEVICE_FN void multiply_rows(const Block& block, Shared left, int row, Shared right,
                                    WarpSums<kKeys> (&scores)[kRowBlocks]) {
  constexpr int kSteps = kDims / 16, kGroup = kExactSteps<kType>;
  const int at_left = left_at<kDims, kAgain>(block, row);
  const int at_right = right_at<kDims, kAgain>(block);
  WarpSums<kKeys> group[kRowBlocks];
  REGARD_DEVICE_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    std::uint32_t a[kRowBlocks][4];
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      load_step<kDims>(block, left, at_left, m, k, a[m]);
      if (k % kGroup == 0) clear(k == 0 ? &scores[m] : &group[m]);
    }
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t b[4];
      load_step<kDims>(block, right, at_right, n, k, b);
      const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        WarpSums<kKeys>& sums = k < kGroup ? scores[m] : group[m];
        block.template multiply_add<kType>(a[m], low, sums.at[2 * n]);
        block.template multiply_add<kType>(a[m], high, sums.at[2 * n + 1]);
        const bool is_last = k % kGroup == kGroup - 1 || k == kSteps - 1;
        if (k < kGroup || !is_last) continue;
        REGARD_DEVICE_UNROLL
        for (int x = 0; x < 8; ++x) {
          scores[m].at[2 * n + x / 4][x % 4] += group[m].at[2 * n + x / 4][x % 4];
        }
      }
    }
  }
}

/// product += left rows of columns [16 n, 16 n + 16), `at` being left_at() of row 0.
template <Element kType, int kDims, int kTerms, int kRowBlocks, class Block, class Shared>
REGARD_DEVICE_FN void multiply_columns(const Block& block,
                                       const WarpRows<kTerms> (&left)[kRowBlocks], Shared rows,
                                       int at, int n, float (&product)[kRowBlocks][2][4]) {
  REGARD_DEVICE_UNROLL
  for (int k = 0; k < kTerms / 16; ++k) {
    std::uint32_t b[4];
    load_step_transposed<kDims>(block, rows, at, k, n, b);
    const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      block.template multiply_add<kType>(left[m].at[k], low, product[m][0]);
      block.template multiply_add<kType>(left[m].at[k], high, product[m][1]);
    }
  }
}

/// Calls join(row block, n, x, product) for each of the sums' at[n][x] and what left rows adds to
/// it, where `rows` has kTerms rows of kDims. The product is summed for itself: tensor cores do not
/// round sums but cut them off, which over all keys of a long row would add up. `zero` is 0, and
/// not known to the compiler.
template <Element kType, int kDims, bool kAgain, int kTerms, int kRowBlocks, class Block,
          class Shared, class Join>
REGARD_DEVICE_FN void join_product(const Block& block, const WarpRows<kTerms> (&left)[kRowBlocks],
                                   Shared rows, int zero, Join join) {
  const int at = left_at<kDims, kAgain>(block, 0) ^ zero;
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kDims / 16; ++n) {
    float product[kRowBlocks][2][4] = {};
    multiply_columns<kType, kDims>(block, left, rows, at, n, product);
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 8; ++x) join(m, 2 * n + x / 4, x % 4, product[m][x / 4][x % 4]);
    }
  }
}

/// 0, as the sign of a factor that is not negative: loads that begin with it wait for the factor.
/// The compiler would begin them before, and have no registers for what they load.
REGARD_DEVICE_FN int zero_of(float factor) { return __builtin_bit_cast(int, factor) >> 31; }

/// sums = sums * rescale[own row] + left rows * unit.
template <Element kType, int kTerms, int kDims, int kRowBlocks, class Block, class Shared>
REGARD_DEVICE_FN void rescale_add_product(const Block& block,
                                          const WarpRows<kTerms> (&left)[kRowBlocks], Shared rows,
                                          const float (&rescale)[kRowBlocks][kLaneRows], float unit,
                                          WarpSums<kDims> (&sums)[kRowBlocks]) {
  join_product<kType, kDims, false>(block, left, rows, zero_of(rescale[0][0]) | zero_of(unit),
                                    [&](int m, int n, int x, float product) {
                                      float& sum = sums[m].at[n][x];
                                      sum = __builtin_fmaf(sum, rescale[m][x / 2], product * unit);
                                    });
}

/// sums += left rows, rounded to the operands' type: those of f16 in a scale of each row.
template <Element kType, int kTerms, int kDims, int kRowBlocks, class Block, class Shared>
REGARD_DEVICE_FN void add_rounded_product(const Block& block,
                                          const WarpSums<kTerms> (&left)[kRowBlocks], Shared rows,
                                          WarpSums<kDims> (&sums)[kRowBlocks]) {
  WarpRows<kTerms> operand[kRowBlocks];
  RowScales scales[kRowBlocks];
  REGARD_DEVICE_UNROLL
  for (int m = 0; m < kRowBlocks; ++m) {
    if constexpr (kType == Element::kF16) {
      operand[m] = as_scaled_operand<kType>(block, left[m], &scales[m]);
    } else {
      operand[m] = as_operand<kType>(left[m], 1.0f);
      scales[m] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
    }
  }
  join_product<kType, kDims, kRecomputesAddresses<kDims>>(
      block, operand, rows, zero_of(scales[0].inverse[0]), [&](int m, int n, int x, float product) {
        float& sum = sums[m].at[n][x];
        sum = __builtin_fmaf(product, scales[m].inverse[x / 2], sum);
      });
}

/// Column n * 8 + x, x of a lane's two, of the lane's row i, by choices: an index that is no
/// constant would move all sums out of registers.
template <int kColumns>
REGARD_DEVICE_FN float chosen(const WarpSums<kColumns>& sums, int n, int i, int x) {
  float value = 0.0f;
  REGARD_DEVICE_UNROLL
  for (int m = 0; m < kColumns / 8; ++m) {
    const float(&four)[4] = sums.at[m];
    const float of_row = x == 0 ? four[2 * i] : four[2 * i + 1];
    value = m == n ? of_row : value;
  }
  return value;
}

/// Elements of rows that are what they stand for.
struct PlainNumbers {
  REGARD_DEVICE_FN float of(const PlainNumbers&, int, int, float number) { return number; }
};

/// sums += left rows, in f32, one term after another, and none where `left` is hidden: behind it
/// `rows` may hold infinities or NaN. Numbers::of(numbers, row, column, element) is an element's
/// number.
template <Element kType, int kTerms, int kColumns, class Block, class Shared,
          class Numbers = PlainNumbers>
REGARD_DEVICE_FN void add_visible_terms(const Block& block, const WarpSums<kTerms>& left,
                                        Shared rows, WarpSums<kColumns>* sums,
                                        const Numbers& numbers = {}) {
  REGARD_DEVICE_NO_UNROLL
  for (int term = 0; term < kTerms; ++term) {
    const int n = term / 8, lanes = term / 2 % 4, x = term % 2;
    const int key = n * 8 + (lane_column(block) ^ lanes * 2) + x;  // of the lane across
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const float value = block.shuffle_xor(chosen(left, n, i, x), lanes);
      if (is_hidden(value)) continue;
      REGARD_DEVICE_UNROLL
      for (int c = 0; c < kColumns / 8; ++c) {
        const int at = Swizzle<kColumns>::at(key, c) + lane_column(block);
        const std::uint16_t first = rows[at], second = rows[at + 1];
        const auto number = [&](std::uint16_t element) {
          return Numbers::of(numbers, key, c * 8, widen<kType>(element));
        };
        sums->at[c][2 * i] += value * number(first);
        sums->at[c][2 * i + 1] += value * number(second);
      }
    }
  }
}

}  // namespace regard::cuda

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
inline constexpr int kLaneRows = 2;                     // of a lane, 8 apart
inline constexpr int kTensorRows = kWarpRows * kWarps;  // of a block
inline constexpr int kChunk = 8;                        // elements of 16 bytes

/// Of a row of 16-bit elements in shared memory: eight rows then begin in eight groups of banks.
template <int kColumns>
inline constexpr int kTensorPitch = kColumns + kChunk;

/// Rows of kTensorPitch elements in shared memory.
template <int kColumns>
struct Pitched {
  /// Where a chunk of a row begins, in elements.
  REGARD_DEVICE_FN int at(int row, int chunk) {
    return row * kTensorPitch<kColumns> + chunk * kChunk;
  }
};

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

/// The first of a lane's rows, within the block, and of its columns in every eight.
template <class Block>
REGARD_DEVICE_FN int lane_row(const Block& block) {
  return block.thread() / kWarp * kWarpRows + block.thread() % kWarp / 4;
}
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

/// Not 0 where one of a word's two numbers is an infinity or NaN: adding one to its exponent then
/// carries into the sign.
template <Element kType>
REGARD_DEVICE_FN std::uint32_t non_finite_bits(std::uint32_t word) {
  constexpr std::uint32_t kExponents = kType == Element::kBf16 ? 0x7f807f80u : 0x7c007c00u;
  constexpr std::uint32_t kOnes = kType == Element::kBf16 ? 0x00800080u : 0x04000400u;
  return ((word & kExponents) + kOnes) & 0x80008000u;
}

/// Elements [column, column + 8) of a row, 0 behind its `columns`, into shared memory.
template <class Shared>
REGARD_DEVICE_FN void copy_elements(const char* row, std::int64_t column, std::int64_t columns,
                                    Shared to, int at) {
  REGARD_DEVICE_NO_UNROLL
  for (int x = 0; x < kChunk; ++x) {
    const bool exists = row != nullptr && column + x < columns;
    std::uint16_t element = 0;
    if (exists) element = reinterpret_cast<const std::uint16_t*>(row)[column + x];
    to[at + x] = element;
  }
}

/// Calls f(row, column) for each of the thread's chunks of a tile of kRows rows: the same ones
/// the waiting thread, which may then read what it copied without a barrier.
template <int kRows, int kColumns, class Block, class F>
REGARD_DEVICE_FN void for_own_chunks(const Block& block, F f) {
  constexpr int kChunks = kColumns / kChunk, kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kStep == 0);
  const int first = block.thread() / kChunks, column = block.thread() % kChunks * kChunk;
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kRows / kStep; ++n) f(first + n * kStep, column);
}

/// Begins to copy kRows rows and kColumns columns from `column` on, 0 where there are none.
/// `in_chunks`: addresses and columns are multiples of 8 elements. Behind wait_copies() and a
/// barrier they are there.
template <int kRows, int kColumns, class Block, class Rows, class Shared>
REGARD_DEVICE_FN void begin_tile(const Block& block, const Rows& rows, std::int64_t column,
                                 bool in_chunks, Shared to) {
  constexpr int kRowPitch = kTensorPitch<kColumns>;
  if (!in_chunks) {
    for_own_chunks<kRows, kColumns>(block, [&](int r, int c) {
      copy_elements(Rows::row(rows, r), column + c, rows.columns, to, r * kRowPitch + c);
    });
    return;
  }
  for_own_chunks<kRows, kColumns>(block, [&](int r, int c) {
    const char* const row = Rows::row(rows, r);
    const bool exists = row != nullptr && column + c < rows.columns;
    block.copy_async(to, r * kRowPitch + c, exists ? row + (column + c) * 2 : nullptr);
  });
}

/// Whether the thread's own part of a tile holds an infinity or NaN.
template <Element kType, int kRows, int kColumns, class Block, class Shared>
REGARD_DEVICE_FN bool has_non_finite(const Block& block, Shared tile) {
  std::uint32_t found = 0;
  for_own_chunks<kRows, kColumns>(block, [&](int r, int c) {
    const Vec4<std::uint32_t> words = load_chunk(tile, r * kTensorPitch<kColumns> + c);
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) found |= non_finite_bits<kType>(words.at[x]);
  });
  return found != 0;
}

/// A warp's rows as a left operand of kDepth columns.
template <int kDepth>
struct WarpRows {
  std::uint32_t at[kDepth / 16][4];
};

/// Elements column and column + 1 of a row, 0 where there are none. `in_pairs`: both are read at
/// once.
REGARD_DEVICE_FN std::uint32_t load_pair(const char* row, std::int64_t column, std::int64_t columns,
                                         bool in_pairs) {
  if (row == nullptr || column >= columns) return 0;
  const auto* const at = reinterpret_cast<const std::uint16_t*>(row) + column;
  if (in_pairs) return *reinterpret_cast<const std::uint32_t*>(at);
  return at[0] | (column + 1 < columns ? static_cast<std::uint32_t>(at[1]) << 16 : 0u);
}

/// Columns [column, column + kDepth) of the warp's rows.
template <int kDepth, class Block, class Rows>
REGARD_DEVICE_FN void load_rows(const Block& block, const Rows& rows, std::int64_t column,
                                bool in_pairs, WarpRows<kDepth>* to) {
  const int row = lane_row(block);
  const char* const from[kLaneRows] = {Rows::row(rows, row), Rows::row(rows, row + 8)};
  const std::int64_t first = column + lane_column(block);
  REGARD_DEVICE_UNROLL
  for (int k = 0; k < kDepth / 16; ++k) {
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) {
      to->at[k][x] = load_pair(from[x % 2], first + k * 16 + x / 2 * 8, rows.columns, in_pairs);
    }
  }
}

/// sums += left right^T for `depth` columns of both; `right` has rows of kDepth in shared memory.
/// Tensor cores cut their sums off, so groups of columns are summed for themselves, as many as cost
/// lse no more than f32's own rounding where all products have one sign. Those of f16 have more
/// bits.
template <Element kType, int kDepth, int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void add_row_products(const Block& block, const WarpRows<kDepth>& left,
                                       Shared right, std::int64_t depth, WarpSums<kColumns>* sums) {
  constexpr int kGroup = kType == Element::kF16 ? 1 : 4;  // of 16 columns
  constexpr bool kInPlace = kGroup == kDepth / 16;        // one group, on sums of 0
  const int lane = block.thread() % kWarp;
  const int at = (lane / 16 * 8 + lane % 8) * kTensorPitch<kDepth> + lane / 8 % 2 * 8;
  REGARD_DEVICE_UNROLL
  for (int group = 0; group < kDepth / 16; group += kGroup) {
    if (group * 16 >= depth) break;
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kColumns / 16; ++n) {
      float of_group[2][4] = {};
      REGARD_DEVICE_UNROLL
      for (int k = group; k < group + kGroup; ++k) {
        if (k * 16 >= depth) break;
        std::uint32_t b[4];
        block.load_matrices(right, at + n * 16 * kTensorPitch<kDepth> + k * 16, b);
        const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
        auto& first = kInPlace ? sums->at[2 * n] : of_group[0];
        auto& second = kInPlace ? sums->at[2 * n + 1] : of_group[1];
        block.template multiply_add<kType>(left.at[k], low, first);
        block.template multiply_add<kType>(left.at[k], high, second);
      }
      if constexpr (!kInPlace) {
        REGARD_DEVICE_UNROLL
        for (int x = 0; x < 8; ++x) sums->at[2 * n + x / 4][x % 4] += of_group[x / 4][x % 4];
      }
    }
  }
}

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

/// first and second += 16 columns of left rows, those from n * 16 on of `rows`, which has kTerms
/// rows of kColumns in shared memory.
template <Element kType, int kTerms, int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void add_columns(const Block& block, const WarpRows<kTerms>& left, Shared rows,
                                  int n, float (&first)[4], float (&second)[4]) {
  const int lane = block.thread() % kWarp;
  const int at = lane % 16 * kTensorPitch<kColumns> + lane / 16 * 8 + n * 16;
  REGARD_DEVICE_UNROLL
  for (int k = 0; k < kTerms / 16; ++k) {
    std::uint32_t b[4];
    block.load_transposed(rows, at + k * 16 * kTensorPitch<kColumns>, b);
    const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    block.template multiply_add<kType>(left.at[k], low, first);
    block.template multiply_add<kType>(left.at[k], high, second);
  }
}

/// sums += left rows, `columns` of them in use.
template <Element kType, int kTerms, int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void add_tile_product(const Block& block, const WarpRows<kTerms>& left,
                                       Shared rows, std::int64_t columns,
                                       WarpSums<kColumns>* sums) {
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kColumns / 16; ++n) {
    if (n * 16 >= columns) break;
    add_columns<kType, kTerms, kColumns>(block, left, rows, n, sums->at[2 * n],
                                         sums->at[2 * n + 1]);
  }
}

/// Calls join(sum, product, own row) for each of the sums and what left rows add to it, each tile
/// summed for itself: tensor cores do not round sums but cut them off, which over all keys of a
/// long row would add up.
template <Element kType, int kTerms, int kColumns, class Block, class Shared, class Join>
REGARD_DEVICE_FN void join_tile_product(const Block& block, const WarpRows<kTerms>& left,
                                        Shared rows, std::int64_t columns, WarpSums<kColumns>* sums,
                                        Join join) {
  REGARD_DEVICE_UNROLL
  for (int n = 0; n < kColumns / 16; ++n) {
    if (n * 16 >= columns) break;
    float of_tile[2][4] = {};
    add_columns<kType, kTerms, kColumns>(block, left, rows, n, of_tile[0], of_tile[1]);
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 8; ++x) {
      join(&sums->at[2 * n + x / 4][x % 4], of_tile[x / 4][x % 4], x % 4 / 2);
    }
  }
}

/// sums += left rows * factor[own row].
template <Element kType, int kTerms, int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void add_scaled_tile_product(const Block& block, const WarpRows<kTerms>& left,
                                              Shared rows, std::int64_t columns,
                                              const float (&factor)[kLaneRows],
                                              WarpSums<kColumns>* sums) {
  join_tile_product<kType>(block, left, rows, columns, sums,
                           [&](float* sum, float product, int row) {
                             *sum = __builtin_fmaf(product, factor[row], *sum);
                           });
}

/// sums = sums * rescale[own row] + left rows.
template <Element kType, int kTerms, int kColumns, class Block, class Shared>
REGARD_DEVICE_FN void rescale_add_tile_product(const Block& block, const WarpRows<kTerms>& left,
                                               Shared rows, std::int64_t columns,
                                               const float (&rescale)[kLaneRows],
                                               WarpSums<kColumns>* sums) {
  join_tile_product<kType>(block, left, rows, columns, sums,
                           [&](float* sum, float product, int row) {
                             *sum = __builtin_fmaf(*sum, rescale[row], product);
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

/// sums += left * factor rows, in f32, one term after another, and none where `left` is hidden:
/// behind it `rows`, in shared memory as `Layout` has them, may hold infinities or NaN.
template <Element kType, template <int> class Layout, int kTerms, int kColumns, class Block,
          class Shared>
REGARD_DEVICE_FN void add_visible_terms(const Block& block, const WarpSums<kTerms>& left,
                                        Shared rows, float factor, WarpSums<kColumns>* sums) {
  REGARD_DEVICE_NO_UNROLL
  for (int term = 0; term < kTerms; ++term) {
    const int n = term / 8, lanes = term / 2 % 4, x = term % 2;
    const int key = n * 8 + (lane_column(block) ^ lanes * 2) + x;  // of the lane across
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const float value = block.shuffle_xor(chosen(left, n, i, x), lanes);
      if (is_hidden(value)) continue;
      const float weight = value * factor;
      REGARD_DEVICE_UNROLL
      for (int c = 0; c < kColumns / 8; ++c) {
        const int at = Layout<kColumns>::at(key, c) + lane_column(block);
        const std::uint16_t first = rows[at], second = rows[at + 1];
        sums->at[c][2 * i] += weight * widen<kType>(first);
        sums->at[c][2 * i + 1] += weight * widen<kType>(second);
      }
    }
  }
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

/// Writes sums * scale[own row] to the lane's rows `row` and row + 8, and the columns from `column`
/// on.
template <Element kType, int kColumns, class Block, class Rows>
REGARD_DEVICE_FN void write_sums(const Block& block, const Rows& rows, int row, std::int64_t column,
                                 const WarpSums<kColumns>& sums, const float (&scale)[kLaneRows]) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    char* const to = Rows::row(rows, row + i * 8);
    if (to == nullptr) continue;
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      const std::int64_t c = column + n * 8 + lane_column(block);
      store_pair<kType>(rows.type, to, c, rows.columns, sums.at[n][2 * i] * scale[i],
                        sums.at[n][2 * i + 1] * scale[i]);
    }
  }
}

}  // namespace regard::cuda

#pragma once

#include <cstdint>

#include "cuda/rows.cuh"

// Products of tiles. The kThreads threads of a block stand in a square of 16 x 16; each holds the
// sums of 4 rows and of 4 columns in every 64. Operands lie in shared memory with the depth in
// rows, [depth][rows or columns], so that both are read four at a time.

namespace regard::cuda {

inline constexpr int kSide = 16;          // threads along either dimension
inline constexpr int kOwn = 4;            // neighbouring rows, or columns, of a thread
inline constexpr int kPitch = kTile + 4;  // of a tile's rows: a transposing write hits other banks
static_assert(kSide * kSide == kThreads && kSide * kOwn == kTile);

/// Terms that are staged together: 8.5 KB of rows in either arithmetic.
template <class T>
inline constexpr int kDepth = 128 / static_cast<int>(sizeof(T));

/// The first of a thread's rows and columns.
struct Place {
  int row, column;
};

template <class Block>
REGARD_DEVICE_FN Place place_of(const Block& block) {
  return {block.thread() / kSide * kOwn, block.thread() % kSide * kOwn};
}

template <class T, int kColumns>
REGARD_DEVICE_FN void clear(T (&sums)[kOwn][kColumns]) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    REGARD_DEVICE_UNROLL
    for (int j = 0; j < kColumns; ++j) sums[i][j] = 0;
  }
}

template <class T, int kColumns>
REGARD_DEVICE_FN void scale_by(T factor, T (&sums)[kOwn][kColumns]) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    REGARD_DEVICE_UNROLL
    for (int j = 0; j < kColumns; ++j) sums[i][j] *= factor;
  }
}

/// Elements (row + r, column + c) of `rows` for r < kRows and c < kColumns to shared memory, 0
/// where there is none: at [c][r] where kTransposed, else at [r][c].
template <class T, int kRows, int kColumns, bool kTransposed, int kTo, class Block, class Rows,
          class Shared>
REGARD_DEVICE_FN void stage(const Block& block, const Rows& rows, std::int64_t row,
                            std::int64_t column, Shared to) {
  with_reader<T>(rows, [&](auto read) {
    REGARD_DEVICE_UNROLL_BY_2  // loads in flight, against registers
        for (int n = block.thread(); n < kRows * kColumns; n += kThreads) {
      const int r = n / kColumns, c = n % kColumns;
      const char* const from = Rows::row(rows, row + r);
      T value{};
      if (from != nullptr && column + c < rows.columns) {
        value = read(from, row + r, column + c);
      }
      to[kTransposed ? c * kTo + r : r * kTo + c] = value;
    }
  });
}

/// sums[i][j] += a[k][own row i] * b[k][own column j] over `depth` terms k. kSelect: where a is
/// hidden there is no term.
template <bool kSelect, int kPitchB, class T, int kColumns, class SharedA, class SharedB>
REGARD_DEVICE_FN void add_terms(Place at, int depth, SharedA a, SharedB b,
                                T (&sums)[kOwn][kColumns]) {
  for (int k = 0; k < depth; ++k) {
    const Vec4<T> left = load4(a, k * kPitch + at.row);
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kColumns / kOwn; ++c) {
      const Vec4<T> right = load4(b, k * kPitchB + c * kTile + at.column);
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        if (kSelect && is_hidden(left.at[i])) continue;
        REGARD_DEVICE_UNROLL
        for (int j = 0; j < kOwn; ++j) sums[i][c * kOwn + j] += left.at[i] * right.at[j];
      }
    }
  }
}

/// Where the operands of one step are staged. b holds rows of up to kColumns columns.
template <class T, int kColumns>
struct Staging {
  static constexpr int kWidth = kColumns * kTile / kOwn;  // of b
  static constexpr int kPitchB = kWidth > kPitch ? kWidth : kPitch;
  static constexpr int kBytesA = kDepth<T> * kPitch * static_cast<int>(sizeof(T));
  static constexpr int kBytesB = kDepth<T> * kPitchB * static_cast<int>(sizeof(T));
  static constexpr int kBytes = kBytesA + kBytesB;
};

/// sums += left right^T, both as rows of `depth` columns: the scores of a tile.
/// Begins with a barrier, so that what was staged before may still be read until then.
template <class T, class Block, class Left, class Right, class Shared>
REGARD_DEVICE_FN void add_row_products(const Block& block, const Left& left, const Right& right,
                                       std::int64_t depth, Shared a, Shared b,
                                       T (&sums)[kOwn][kOwn]) {
  const Place at = place_of(block);
  for (std::int64_t k = 0; k < depth; k += kDepth<T>) {
    block.sync();
    stage<T, kTile, kDepth<T>, true, kPitch>(block, left, 0, k, a);
    stage<T, kTile, kDepth<T>, true, kPitch>(block, right, 0, k, b);
    block.sync();
    const int terms = depth - k < kDepth<T> ? static_cast<int>(depth - k) : kDepth<T>;
    add_terms<false, kPitch>(at, terms, a, b, sums);
  }
}

/// sums += tile rows, where `tile` [kTile][kPitch] lies in shared memory with its depth in rows,
/// and column `column` of `rows` is the first. Where the tile is hidden, rows are left out. Begins
/// with a barrier.
template <class T, int kColumns, class Block, class SharedTile, class Rows, class Shared>
REGARD_DEVICE_FN void add_tile_product(const Block& block, SharedTile tile, const Rows& rows,
                                       std::int64_t column, Shared b, T (&sums)[kOwn][kColumns]) {
  using Space = Staging<T, kColumns>;
  const Place at = place_of(block);
  const int depth = rows.count < kTile ? static_cast<int>(rows.count) : kTile;
  for (int k = 0; k < depth; k += kDepth<T>) {
    block.sync();
    stage<T, kDepth<T>, Space::kWidth, false, Space::kPitchB>(block, rows, k, column, b);
    block.sync();
    const int terms = depth - k < kDepth<T> ? depth - k : kDepth<T>;
    add_terms<true, Space::kPitchB>(at, terms, tile + k * kPitch, b, sums);
  }
}

/// Writes sums * scale[own row] to rows [row, row + kTile) and the columns from `column` on.
template <class T, int kColumns, class Block, class Rows>
REGARD_DEVICE_FN void write_sums(const Block& block, const Rows& rows, std::int64_t row,
                                 std::int64_t column, const T (&sums)[kOwn][kColumns],
                                 const T (&scale)[kOwn]) {
  const Place at = place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    char* const to = Rows::row(rows, row + at.row + i);
    if (to == nullptr) continue;
    REGARD_DEVICE_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const std::int64_t c = column + j / kOwn * kTile + at.column + j % kOwn;
      if (c < rows.columns) store_element(rows.type, to, c, sums[i][j] * scale[i]);
    }
  }
}

/// The sum over the kSide threads that share a row, which are neighbours in a warp.
template <class T, class Block>
REGARD_DEVICE_FN T sum_of_row(const Block& block, T value) {
  REGARD_DEVICE_UNROLL
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) value += block.shuffle_xor(value, lanes);
  return value;
}

/// The greatest value of those threads; NaN is passed over.
template <class T, class Block>
REGARD_DEVICE_FN T max_of_row(const Block& block, T value) {
  REGARD_DEVICE_UNROLL
  for (int lanes = kSide / 2; lanes > 0; lanes /= 2) {
    const T other = block.shuffle_xor(value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace regard::cuda

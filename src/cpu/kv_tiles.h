#pragma once

#include <cstdint>

#include "cpu/forward/bf16_pairs.h"
#include "cpu/kv_operand.h"
#include "cpu/rows.h"
#include "cpu/simd/product.h"
#include "semantics/tiles.h"

// Loads tiles of K and V in the forms that the products take: in place, converted to the type of
// the arithmetic, or as pairs of bf16. Every kernel on CPUs reads K and V through these functions.

namespace regard::cpu {

REGARD_KERNEL_FN bool is_one_run(const KvOperand& x, semantics::Tile tile) {
  return is_one_run(x, tile.begin, tile.begin + tile.size);
}

/// Rows of x from key j on, [keys][dim], where they lie; T is x.type, or pairs of it.
template <class T>
REGARD_KERNEL_FN ProductInput<T> rows_in_place(const KvOperand& x, std::int64_t j) {
  constexpr std::int64_t kBytes = sizeof(T);
  return {reinterpret_cast<const T*>(row_of(x, j)), x.stride / kBytes, 1};
}

/// The same matrix with rows and columns exchanged.
template <class T>
REGARD_KERNEL_FN ProductInput<T> transposed(ProductInput<T> a) {
  return {a.data, a.step, a.row_stride};
}

/// Rows a multiple of 4 KB apart: a column of a tile lies in one set of the L1.
REGARD_KERNEL_FN bool shares_sets(const KvOperand& x) {
  constexpr std::int64_t kApart = 4096;
  return x.stride % kApart == 0;
}

template <class V>
static void multiply_row(typename V::Scalar* row, std::int64_t n, typename V::Scalar by) {
  std::int64_t x = 0;
  for (; x + V::kLanes <= n; x += V::kLanes) V::store(row + x, V::load(row + x) * V::set(by));
  for (; x < n; ++x) row[x] *= by;
}

/// Each block of `columns` elements times its scale.
template <class V>
static void multiply_blocks(typename V::Scalar* row, std::int64_t n, const float* scales,
                            std::int64_t columns) {
  for (std::int64_t begin = 0; begin < n; begin += columns, ++scales) {
    const std::int64_t size = begin + columns < n ? columns : n - begin;
    multiply_row<V>(row + begin, size, static_cast<typename V::Scalar>(*scales));
  }
}

/// Codes of u4 become scale * code + minimum, group by group.
template <class V>
static void scale_groups(typename V::Scalar* row, std::int64_t n, const float* scales) {
  using T = typename V::Scalar;
  for (std::int64_t begin = 0; begin < n; begin += kGroup, scales += 2) {
    const std::int64_t end = begin + kGroup < n ? begin + kGroup : n;
    const auto scale = V::set(static_cast<T>(scales[0])), min = V::set(static_cast<T>(scales[1]));
    std::int64_t x = begin;
    for (; x + V::kLanes <= end; x += V::kLanes) {
      V::store(row + x, V::fma(V::load(row + x), scale, min));
    }
    if (x == end) continue;
    T tail[V::kLanes] = {};
    for (std::int64_t y = x; y < end; ++y) tail[y - x] = row[y];
    V::store(tail, V::fma(V::load(tail), scale, min));
    for (std::int64_t y = x; y < end; ++y) row[y] = tail[y - x];
  }
}

/// A tile converted to the type of the arithmetic in `buffer`: [size][padded], zeros past dim.
template <class V>
static ProductInput<typename V::Scalar> convert_tile(const KvOperand& operand, semantics::Tile tile,
                                                     std::int64_t padded,
                                                     typename V::Scalar* buffer) {
  using T = typename V::Scalar;
  const KvOperand x = operand;  // or it is read again after every store, for that may change it
  const auto convert_from = [&](Element type) __attribute__((always_inline)) {
    std::int64_t run = 0;  // keys left that follow one another
    const char* from = nullptr;
    for (std::int64_t j = 0; j < tile.size; ++j, --run, from += x.stride) {
      if (run == 0) {
        run = run_of(x, tile.begin + j, tile.begin + tile.size);
        from = row_of(x, tile.begin + j);
      }
      auto* const row = buffer + j * padded;
      load_dense_row<V>(type, from, x.dim, row);
      if (type == Element::kU4) {
        scale_groups<V>(row, x.dim, scale_at(x, tile.begin + j));
      } else if (x.scales.columns != 0) {
        multiply_blocks<V>(row, x.dim, scale_at(x, tile.begin + j), x.scales.columns);
      } else if (x.scales.first != nullptr) {
        multiply_row<V>(row, x.dim, static_cast<T>(*scale_at(x, tile.begin + j)));
      }
      for (std::int64_t d = x.dim; d < padded; ++d) row[d] = 0;
    }
  };
  switch (x.type) {  // one loop for each type, not one branch for each vector
    case Element::kF32: convert_from(Element::kF32); break;
    case Element::kBf16: convert_from(Element::kBf16); break;
    case Element::kF16: convert_from(Element::kF16); break;
    case Element::kF8E4M3: convert_from(Element::kF8E4M3); break;
    case Element::kF8E5M2: convert_from(Element::kF8E5M2); break;
    case Element::kI8: convert_from(Element::kI8); break;
    case Element::kU4: convert_from(Element::kU4); break;
    default: convert_from(x.type); break;
  }
  return {buffer, padded, 1};
}

/// A tile as [size][dim] of the type of the arithmetic: in place where x has that type and the keys
/// follow one another, otherwise in `buffer`.
template <class V>
static ProductInput<typename V::Scalar> load_tile(const KvOperand& x, semantics::Tile tile,
                                                  typename V::Scalar* buffer) {
  if (x.type == kOwnElement<V> && is_one_run(x, tile)) {
    return rows_in_place<typename V::Scalar>(x, tile.begin);
  }
  return convert_tile<V>(x, tile, x.dim, buffer);
}

/// A tile of bf16 as pairs along head_dim, copied to `pairs`: [size][row_pairs], zeros past dim.
REGARD_KERNEL_FN ProductInput<Pair> copy_pairs(const KvOperand& x, semantics::Tile tile,
                                               std::int64_t row_pairs, Pair* pairs) {
  const std::int64_t used = x.dim * static_cast<std::int64_t>(sizeof(std::uint16_t));
  const std::int64_t bytes = row_pairs * static_cast<std::int64_t>(sizeof(Pair));
  char* row = reinterpret_cast<char*>(pairs);
  for (std::int64_t j = 0; j < tile.size; ++j, row += bytes) {
    __builtin_memcpy(row, row_of(x, tile.begin + j), static_cast<std::size_t>(used));
    __builtin_memset(row + used, 0, static_cast<std::size_t>(bytes - used));
  }
  return {pairs, row_pairs, 1};
}

/// The same [size][(dim + 1) / 2], in place where whole pairs lie there and keys follow one
/// another.
REGARD_KERNEL_FN ProductInput<Pair> load_pairs(const KvOperand& x, semantics::Tile tile,
                                               Pair* pairs) {
  const std::int64_t row_pairs = (x.dim + 1) / 2;
  const bool has_whole_pairs =
      x.dim % 2 == 0 && x.stride % static_cast<std::int64_t>(sizeof(Pair)) == 0;
  if (has_whole_pairs && is_one_run(x, tile)) return rows_in_place<Pair>(x, tile.begin);
  return copy_pairs(x, tile, row_pairs, pairs);
}

/// A tile of bf16 transposed for products along keys: pairs of keys 2 j and 2 j + 1 in row j of
/// [(size + 1) / 2][padded], zeros past dim and for the second half of an odd last key.
template <class V>
static ProductInput<Pair> pair_keys(const KvOperand& x, semantics::Tile tile, std::int64_t padded,
                                    Pair* pairs) {
  for (std::int64_t j = 0; j < tile.size; j += 2) {
    const auto row_at = [&](std::int64_t key) __attribute__((always_inline)) {
      return reinterpret_cast<const std::uint16_t*>(row_of(x, tile.begin + key));
    };
    Pair* const to = pairs + j / 2 * padded;
    pair_rows<V>(row_at(j), j + 1 < tile.size ? row_at(j + 1) : nullptr, x.dim, to);
    for (std::int64_t d = x.dim; d < padded; ++d) to[d].bits = 0;
  }
  return {pairs, 1, padded};
}

/// False where an element of the [rows][dim] tile is NaN or infinite.
template <class V>
static bool all_finite(ProductInput<typename V::Scalar> a, std::int64_t rows, std::int64_t dim) {
  using T = typename V::Scalar;
  typename V::Vec sum{};
  T tail = 0;
  for (std::int64_t j = 0; j < rows; ++j) {
    const T* row = a.data + j * a.row_stride;
    std::int64_t d = 0;
    // x * 0 is 0 for finite x and NaN otherwise.
    for (; d + V::kLanes <= dim; d += V::kLanes) sum += V::load(row + d) * V::set(T(0));
    for (; d < dim; ++d) tail += row[d] * T(0);
  }
  for (int lane = 0; lane < V::kLanes; ++lane) tail += sum[lane];
  return tail == T(0);
}

}  // namespace regard::cpu

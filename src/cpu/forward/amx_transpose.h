#pragma once

#include <cstdint>

#include "cpu/forward/bf16_pairs.h"
#include "cpu/simd/amx_tiles.h"

// bf16 matrices of keys transposed, for products along keys by AMX.

namespace regard::cpu {

REGARD_KERNEL_FN constexpr std::int64_t round_up(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

/// Elements [d, d + 32) of a row, 0 past its end.
template <class V>
REGARD_KERNEL_FN typename V::Vec load_row_pairs(const char* row, std::int64_t d, std::int64_t dim) {
  typename V::Vec pairs = V::set(0);
  const std::int64_t left = dim - d;
  const char* const from = row + d * static_cast<std::int64_t>(sizeof(std::uint16_t));
  if (left >= 2 * V::kLanes) {
    __builtin_memcpy(&pairs, from, sizeof(pairs));
  } else {
    __builtin_memcpy(&pairs, from, static_cast<std::size_t>(left) * sizeof(std::uint16_t));
  }
  return pairs;
}

/// The rows of `count` keys, 32 at most, become the 16 pairs at to[d * row_pairs] for every d up to
/// `dim` in whole registers' rows: zeros past `count` and `dim`. Blocks of 32 dims: pairs of dims
/// of the even and of the odd keys are transposed, and their halves paired.
template <class V>
static void transpose_keys(const char* const* rows, int count, std::int64_t dim, Pair* to,
                           std::int64_t row_pairs) {
  using Unsigned = typename V::Unsigned;
  const std::int64_t dims = round_up(dim, amx::kRows);
  for (std::int64_t d = 0; d < dims; d += 2 * V::kLanes) {
    typename V::Vec even[V::kLanes], odd[V::kLanes];  // bits that are only moved
    REGARD_UNROLL for (int i = 0; i < V::kLanes; ++i) {
      even[i] = 2 * i < count ? load_row_pairs<V>(rows[2 * i], d, dim) : V::set(0);
      odd[i] = 2 * i + 1 < count ? load_row_pairs<V>(rows[2 * i + 1], d, dim) : V::set(0);
    }
    V::transpose(even);
    V::transpose(odd);
    REGARD_UNROLL for (int i = 0; i < V::kLanes; ++i) {
      const Unsigned a = V::to_unsigned(even[i]), b = V::to_unsigned(odd[i]);
      const Unsigned low = (a & 0xffffu) | b << 16, high = a >> 16 | (b & 0xffff0000u);
      Pair* const row = to + (d + 2 * i) * row_pairs;
      if (d + 2 * i >= dims) break;
      __builtin_memcpy(row, &low, sizeof(low));
      __builtin_memcpy(row + row_pairs, &high, sizeof(high));
    }
  }
}

}  // namespace regard::cpu

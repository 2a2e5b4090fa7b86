#pragma once

#include <cstdint>

#include "cpu/forward/softmax.h"
#include "cpu/rows.h"
#include "cpu/simd/product.h"

// Products of bf16 two by two, for vocabularies with dot and rounded. Along a row a pair is two
// neighbours of one row, across rows the same element of two.

namespace regard::cpu {

/// Two bf16, the first in the low half, at any address of a bf16.
struct __attribute__((packed, may_alias, aligned(2))) Pair {
  std::uint32_t bits;
};

/// A term of a product of pairs.
template <class V>
struct PairTerm {
  using A = Pair;
  using B = Pair;
  using Column = typename V::Int;
  REGARD_KERNEL_FN Column load(const Pair* p) {
    Column column;
    __builtin_memcpy(&column, p, sizeof(column));
    return column;
  }
  REGARD_KERNEL_FN Column broadcast(Pair a) { return static_cast<std::int32_t>(a.bits) - Column{}; }
  REGARD_KERNEL_FN typename V::Vec add(typename V::Vec sum, Column a, Column b) {
    return V::dot(sum, a, b);
  }
  /// See ScalarTerm.
  REGARD_KERNEL_FN typename V::Vec add_visible(typename V::Vec sum, Column a, Column b) {
    return add_halves(sum, a, b, b < 0, (b << 16) < 0);
  }
  /// Without the halves that are hidden; one by one, in dot's order, so that the others keep their
  /// bits.
  REGARD_KERNEL_FN typename V::Vec add_halves(typename V::Vec sum, Column a, Column b,
                                              typename V::Mask high_hidden,
                                              typename V::Mask low_hidden) {
    const Column high = Column{} + static_cast<std::int32_t>(0xffff0000u);
    const Column low = Column{} + 0xffff;
    sum = V::select(high_hidden, sum, V::dot(sum, a & high, b & high));
    return V::select(low_hidden, sum, V::dot(sum, a & low, b & low));
  }
};

/// Elements d and d + 1 of a row; 0 past its end.
REGARD_KERNEL_FN Pair pair_of(const std::uint16_t* row, std::int64_t d, std::int64_t dim) {
  const std::uint32_t high = d + 1 < dim ? row[d + 1] : 0;
  return {high << 16 | row[d]};
}

/// columns[x * V::kWidth + lane] = pair x of rows[lane], for V::kLanes lanes; 0 from lane `count`
/// on.
template <class V>
static void load_pair_columns(const char* const* rows, int count, std::int64_t dim, Pair* columns) {
  std::int64_t x = 0;
  const auto load_blocks = [&](int used) __attribute__((always_inline)) {
    x = for_lanes<V>(
        dim / 2, [&](std::int64_t at) __attribute__((always_inline)) {
          typename V::Vec block[V::kLanes];  // bits that are only moved
          REGARD_UNROLL for (int lane = 0; lane < V::kLanes; ++lane) {
            block[lane] = V::set(0);
            if (lane < used)
              __builtin_memcpy(&block[lane], rows[lane] + at * 4, sizeof(block[lane]));
          }
          V::transpose(block);
          REGARD_UNROLL for (int y = 0; y < V::kLanes; ++y) {
            __builtin_memcpy(columns + (at + y) * V::kWidth, &block[y], sizeof(block[y]));
          }
        });
  };
  if (count == V::kLanes) {  // without branches for each row
    load_blocks(V::kLanes);
  } else {
    load_blocks(count);
  }
  for (; x < (dim + 1) / 2; ++x) {
    for (int lane = 0; lane < V::kLanes; ++lane) {
      const auto* row = reinterpret_cast<const std::uint16_t*>(rows[lane < count ? lane : 0]);
      columns[x * V::kWidth + lane] = lane < count ? pair_of(row, 2 * x, dim) : Pair{0};
    }
  }
}

/// Probabilities of keys j and j + 1 as row j / 2 of pairs, in the place of the scores; an odd last
/// key is paired with 0. See FloatProbs.
template <class V>
struct PairProbs {
  using T = typename V::Scalar;

  REGARD_KERNEL_FN void store_pair(T* probs, std::int64_t j, int at, typename V::Vec low,
                                   typename V::Vec high) {
    const auto column = V::to_pairs(low, high);
    __builtin_memcpy(probs + (j >> 1) * V::kWidth + at, &column, sizeof(column));
  }
  template <int kKeys>
  REGARD_KERNEL_FN void store(T* probs, std::int64_t j, int at,
                              const typename V::Vec (&prob)[kKeys]) {
    if constexpr (kKeys % 2 == 0) {
      REGARD_UNROLL for (int i = 0; i < kKeys; i += 2) {
        store_pair(probs, j + i, at, prob[i], prob[i + 1]);
      }
    } else {
      FloatProbs<V>::template store<kKeys>(probs, j, at, prob);
    }
  }
  template <int kVectors>
  static void finish(T* probs, std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; j += 2) {
      for (int at = 0; at < kVectors * V::kLanes; at += V::kLanes) {
        const T* const from = probs + j * V::kWidth + at;
        const auto high = j + 1 < end ? V::load(from + V::kWidth) : V::set(0);
        store_pair(probs, j, at, V::load(from), high);
      }
    }
  }
};

/// to[d] = elements d of two rows; the second may be null, for zeros.
template <class V>
static void pair_rows(const std::uint16_t* low, const std::uint16_t* high, std::int64_t dim,
                      Pair* to) {
  std::int64_t d = 0;
  for (; d + V::kLanes <= dim; d += V::kLanes) {
    auto pairs = V::to_unsigned(V::load_bf16(low + d)) >> 16;
    if (high != nullptr) pairs |= V::to_unsigned(V::load_bf16(high + d));
    __builtin_memcpy(to + d, &pairs, sizeof(pairs));
  }
  for (; d < dim; ++d) {
    const std::uint32_t second = high != nullptr ? high[d] : 0;
    to[d].bits = second << 16 | low[d];
  }
}

/// False where a half of one of the [rows][size] pairs is NaN or infinite.
template <class V>
static bool all_finite_pairs(ProductInput<Pair> a, std::int64_t rows, std::int64_t size) {
  constexpr std::uint32_t kLow = 0x7f80u, kHigh = kLow << 16;  // all ones in either exponent
  typename V::Int special{};
  std::uint32_t tail = 0;
  for (std::int64_t j = 0; j < rows; ++j) {
    const Pair* const row = a.data + j * a.row_stride;
    std::int64_t x = 0;
    for (; x + V::kLanes <= size; x += V::kLanes) {
      typename V::Unsigned pairs;
      __builtin_memcpy(&pairs, row + x, sizeof(pairs));
      special |= ((pairs & kLow) == kLow) | ((pairs & kHigh) == kHigh);
    }
    for (; x < size; ++x) {
      tail |= (row[x].bits & kLow) == kLow || (row[x].bits & kHigh) == kHigh;
    }
  }
  for (int lane = 0; lane < V::kLanes; ++lane) tail |= static_cast<std::uint32_t>(special[lane]);
  return tail == 0;
}

}  // namespace regard::cpu

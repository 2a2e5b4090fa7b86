#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/prefetch.h"
#include "cpu/rows.h"
#include "cpu/simd/product.h"

// Rows whose keys all lie in one tile: probabilities times values with lanes along head_dim. The
// sums are in registers when they are divided and written, where out^T takes two passes and a
// transposition. Each is the sum of the same terms in the same order, so that the bits are those of
// columns_out.h.

namespace regard::cpu {

/// Rows of a row block.
struct LaneRange {
  std::int64_t begin;  // a multiple of kFinishedRows
  std::int64_t end;
};

/// Rows that are finished together, at least: blocks may take lanes that are not in use.
inline constexpr int kFinishedRows = 4;

/// Vectors of head_dim in a chunk, at most: four rows of them are as many sums as those of the
/// other products.
template <class V>
inline constexpr int kFinishedVectors = V::kRows * V::kVectors / kFinishedRows < 4
                                            ? V::kRows * V::kVectors / kFinishedRows
                                            : 4;

/// Where the row block's rows of out lie, and what their sums are multiplied by.
template <class V>
struct FinishedRows {
  alignas(64) typename V::Scalar share[V::kWidth];
  char* row[V::kWidth];
};

template <class V>
static void find_finished_rows(const Problem& p, const RowBlock<V>& row_block,
                               FinishedRows<V>* to) {
  inverse_sums(p, row_block, to->share);
  for (int v = 0; v < row_block.vectors; ++v) {
    lane_rows(p.out, row_block, v * V::kLanes, to->row + v * V::kLanes);
  }
}

/// out = (probs * values) * share for rows [rows.begin, rows.end), kVectors vectors of head_dim
/// from byte `at` of each row of out on. probs is [rows][k], values [k][stride].
template <class V, class Term, int kVectors>
static void finish_columns(Element type, const FinishedRows<V>& to, std::int64_t at, LaneRange rows,
                           ProductInput<typename Term::A> probs, const typename Term::B* values,
                           std::int64_t stride, std::int64_t k, PrefetchCursor* ahead) {
  // Eight rows where that leaves enough registers: four of few vectors would wait for each other.
  constexpr bool kFits = 2 * kFinishedRows * kVectors <= V::kRows * V::kVectors;
  constexpr int kBlock = kFits && V::kRows >= 2 * kFinishedRows ? 2 * kFinishedRows : kFinishedRows;
  PrefetchCursor cursor = *ahead;  // in registers
  const auto finish = [&](std::int64_t w, auto count, Element as) __attribute__((always_inline)) {
    constexpr int kCount = decltype(count)::value;
    typename V::Vec sum[kCount][kVectors] = {};
    ProductInput<typename Term::A> a = probs;
    a.data += w * a.row_stride;
    const typename Term::B* b = values;
    for (std::int64_t left = k; left > 0; left -= kPrefetchSteps) {
      const std::int64_t steps = left < kPrefetchSteps ? left : kPrefetchSteps;
      prefetch_rows<V::kRows>(&cursor);
      multiply<V, Term, kCount, kVectors, false, 0>(a, b, steps, sum, nullptr, stride);
      a.data += kPrefetchSteps * a.step;
      b += kPrefetchSteps * stride;
    }
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      if (w + i >= rows.end) break;
      const auto share = V::set(to.share[w + i]);
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) sum[i][v] *= share;
      store_vectors<V>(as, to.row[w + i] + at, sum[i]);
    }
  };
  const auto finish_all = [&](Element as) __attribute__((always_inline)) {
    std::int64_t w = rows.begin;
    for (; w + kBlock <= rows.end; w += kBlock) finish(w, Count<kBlock>{}, as);
    for (; w < rows.end; w += kFinishedRows) finish(w, Count<kFinishedRows>{}, as);
  };
  if (type == Element::kF32) {  // or there is a branch for each vector
    finish_all(Element::kF32);
  } else if (type == Element::kBf16) {
    finish_all(Element::kBf16);
  } else {
    finish_all(type);
  }
  *ahead = cursor;
}

/// The same for all of head_dim_v, in chunks as even as can be; values is [k][stride].
template <class V, class Term>
static void finish_rows(const Problem& p, const FinishedRows<V>& to, LaneRange rows,
                        const typename Term::A* probs, const typename Term::B* values,
                        std::int64_t stride, std::int64_t k, PrefetchCursor* ahead) {
  constexpr int kMax = kFinishedVectors<V>;
  const std::int64_t vectors = p.head_dim_v / V::kLanes, chunks = (vectors + kMax - 1) / kMax;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t begin = share_begin(vectors, chunks, chunk);
    const auto size = static_cast<int>(share_begin(vectors, chunks, chunk + 1) - begin);
    with_vectors<kMax>(
        size, [&](auto count) __attribute__((always_inline)) {
          finish_columns<V, Term, decltype(count)::value>(
              p.out.type, to, begin * V::kLanes * element_bytes(p.out.type), rows,
              {probs, 1, V::kWidth}, values + begin * V::kLanes, stride, k, ahead);
        });
  }
}

}  // namespace regard::cpu

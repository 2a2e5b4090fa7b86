#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/prefetch.h"
#include "cpu/rows.h"
#include "cpu/simd/product.h"

// Outputs of rows in lanes, whose lanes lie along head_dim: probabilities times values as rows. The
// sums of a row block's last tile are in registers when they are divided and written, where out^T
// (columns_out.h) takes two passes more and a transposition, and each few rows multiply the keys
// that they see. Sums are those of the same terms in the same order: the bits are the same.

namespace regard::cpu {

/// Rows that are summed together, at least: they may be lanes that are not in use.
inline constexpr int kOutputRows = 4;

/// Vectors of head_dim that are, at most: as many sums as in the other products.
template <class V>
inline constexpr int kOutputVectors =
    V::kRows* V::kVectors / kOutputRows < 4 ? V::kRows* V::kVectors / kOutputRows : 4;

/// Where a row block's sums go: row w becomes (sums[w] * rescale[w] + its sum) * share[w].
template <class V>
struct OutputRows {
  using T = typename V::Scalar;
  alignas(64) T share[V::kWidth];
  char* row[V::kWidth];
  Element type;      // of the rows
  const T* sums;     // of the tiles before, [W][padded head_dim_v]; null: there is none
  const T* rescale;  // [W]
  std::int64_t step;
  bool streams;  // rows of out go past the caches where they can
};

/// The rows of out, which the row block's last tile writes, or those of `sums`.
template <class V>
static void find_output_rows(const Problem& p, const RowBlock<V>& row_block, bool is_last,
                             typename V::Scalar* sums, OutputRows<V>* to) {
  using T = typename V::Scalar;
  to->step = padded_head_dim(p.head_dim_v);
  to->sums = row_block.has_out ? sums : nullptr;
  to->streams = false;
  if (is_last) {
    to->type = p.out.type;
    inverse_sums(p, row_block, to->share);
    for (int at = 0; at < lanes_of(row_block); at += V::kLanes) {
      lane_rows(p.out, row_block, at, to->row + at);
    }
    return;
  }
  to->type = kOwnElement<V>;
  for (int w = 0; w < lanes_of(row_block); ++w) {
    to->share[w] = T(1);
    to->row[w] = reinterpret_cast<char*>(sums + w * to->step);
  }
}

/// The rows of a row block that no tile has written.
template <class V>
static void write_output_rows(const Problem& p, const RowBlock<V>& row_block,
                              typename V::Scalar* sums) {
  OutputRows<V> to;
  find_output_rows(p, row_block, true, sums, &to);
  const std::int64_t bytes = element_bytes(p.out.type);
  for (std::int64_t w = 0; w < row_block.rows; ++w) {
    for (std::int64_t d = 0; d < p.head_dim_v; d += V::kLanes) {
      const auto sum = to.sums != nullptr ? V::load(sums + w * to.step + d) : V::set(0);
      store_vector<V>(p.out.type, to.row[w] + d * bytes, sum * V::set(to.share[w]));
    }
  }
}

/// What rows are summed of: probs [steps][W] and values [steps][stride], from the first key on.
template <class Term>
struct RowProduct {
  const typename Term::A* probs;
  const typename Term::B* values;
  std::int64_t stride;
  std::int64_t steps;
  const semantics::KeyRange* few_steps = nullptr;  // of each kOutputRows rows; null: all
};

/// The part of it that rows [w, w + count) sum.
template <class V, class Term>
REGARD_KERNEL_FN RowProduct<Term> product_of_rows(const RowProduct<Term>& of, std::int64_t w,
                                                  std::int64_t count) {
  RowProduct<Term> rows = {of.probs + w, of.values, of.stride, of.steps};
  if (of.few_steps == nullptr) return rows;
  const std::int64_t begin = of.few_steps[w / kOutputRows].lo;
  rows.probs += begin * V::kWidth;
  rows.values += begin * of.stride;
  rows.steps = of.few_steps[(w + count - 1) / kOutputRows].hi - begin;
  return rows;
}

/// sum[i][v] += probs * values for kRows rows and kVectors vectors of head_dim; kSelects: see
/// Term::add_visible.
template <class V, class Term, int kRows, int kVectors, bool kSelects>
REGARD_KERNEL_FN void add_row_product(RowProduct<Term> of, PrefetchCursor* ahead,
                                      typename V::Vec (&sum)[kRows][kVectors]) {
  if constexpr (kSelects) {
    for (std::int64_t x = 0; x < of.steps; ++x) {
      REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
        const auto prob = Term::broadcast(of.probs[x * V::kWidth + i]);
        REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
          const auto value = Term::load(of.values + x * of.stride + v * V::kLanes);
          sum[i][v] = Term::add_visible(sum[i][v], value, prob);
        }
      }
    }
    return;
  }
  ProductInput<typename Term::A> a = {of.probs, 1, V::kWidth};
  for (std::int64_t left = of.steps; left > 0; left -= kPrefetchSteps) {
    const std::int64_t steps = left < kPrefetchSteps ? left : kPrefetchSteps;
    prefetch_rows<V::kRows>(ahead);
    multiply<V, Term, kRows, kVectors, false, 0>(a, of.values, steps, sum, nullptr, of.stride);
    a.data += kPrefetchSteps * a.step;
    of.values += kPrefetchSteps * of.stride;
  }
}

/// `rows` rows of kVectors vectors of head_dim, from the first-th on, to which the values of `of`
/// point.
template <class V, class Term, int kVectors, bool kSelects>
static void add_output_columns(const OutputRows<V>& to, std::int64_t first, std::int64_t rows,
                               const RowProduct<Term>& of, PrefetchCursor* ahead) {
  // Eight rows where that leaves enough registers: four of few vectors would wait for each other.
  constexpr bool kFits = 2 * kOutputRows * kVectors <= V::kRows * V::kVectors;
  constexpr int kBlock = kFits && V::kRows >= 2 * kOutputRows ? 2 * kOutputRows : kOutputRows;
  const std::int64_t at = first * V::kLanes * element_bytes(to.type);
  PrefetchCursor cursor = *ahead;  // in registers
  const auto add = [&](std::int64_t w, auto count, Element type) __attribute__((always_inline)) {
    constexpr int kCount = decltype(count)::value;
    typename V::Vec sum[kCount][kVectors] = {};
    const std::int64_t used = w + kCount < rows ? kCount : rows - w;
    const RowProduct<Term> block = product_of_rows<V>(of, w, used);
    add_row_product<V, Term, kCount, kVectors, kSelects>(block, &cursor, sum);
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      if (w + i >= rows) break;
      const auto share = V::set(to.share[w + i]);
      const auto* const before = to.sums + (w + i) * to.step + first * V::kLanes;
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        if (to.sums != nullptr) {
          sum[i][v] = V::fma(V::load(before + v * V::kLanes), V::set(to.rescale[w + i]), sum[i][v]);
        }
        sum[i][v] *= share;
      }
      if (to.streams) {
        stream_vectors<V>(type, to.row[w + i] + at, sum[i]);
      } else {
        store_vectors<V>(type, to.row[w + i] + at, sum[i]);
      }
    }
  };
  const auto add_all = [&](Element type) __attribute__((always_inline)) {
    // Vectors of rows have scores of the keys alone that they see.
    const bool in_one = of.few_steps == nullptr || V::kLanes % kBlock == 0;
    std::int64_t w = 0;
    for (; in_one && w + kBlock <= rows; w += kBlock) add(w, Count<kBlock>{}, type);
    for (; w < rows; w += kOutputRows) add(w, Count<kOutputRows>{}, type);
  };
  if (!kSelects && to.type == kOwnElement<V>) {  // or there is a branch for each vector
    add_all(kOwnElement<V>);
  } else if (!kSelects && to.type == Element::kBf16) {
    add_all(Element::kBf16);
  } else {
    add_all(to.type);
  }
  *ahead = cursor;
}

/// The same for all of head_dim_v, in chunks as even as can be. `selects`: what is hidden may be
/// multiplied by values that are not finite.
template <class V, class Term>
static void add_output_rows(const Problem& p, const OutputRows<V>& to, std::int64_t rows,
                            RowProduct<Term> of, bool selects, PrefetchCursor* ahead) {
  const std::int64_t vectors = p.head_dim_v / V::kLanes;
  constexpr int kMax = kOutputVectors<V>;
  const std::int64_t chunks = selects ? vectors : (vectors + kMax - 1) / kMax;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t begin = share_begin(vectors, chunks, chunk);
    const auto size = static_cast<int>(share_begin(vectors, chunks, chunk + 1) - begin);
    RowProduct<Term> part = of;
    part.values += begin * V::kLanes;
    if (selects) {
      add_output_columns<V, Term, 1, true>(to, begin, rows, part, ahead);
      continue;
    }
    with_vectors<kMax>(
        size, [&](auto count) __attribute__((always_inline)) {
          add_output_columns<V, Term, decltype(count)::value, false>(to, begin, rows, part, ahead);
        });
  }
}

}  // namespace regard::cpu

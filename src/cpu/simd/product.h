#pragma once

#include <cstdint>

#include "cpu/prefetch.h"
#include "cpu/simd/simd_vector.h"
#include "semantics/kernel_fn.h"

// The blocked product that every backend shares. Queries lie in vector lanes: with W = V::kWidth,
// scores^T [keys][W] = K [keys][D] * Q^T [D][W], and out^T [D][W] = V^T [D][keys] * probs^T
// [keys][W]. So K and V are read element by element, at any stride, and nothing is summed across
// lanes: a row's bits never depend on its neighbours. Only the first kVectors vectors of each row
// of W are computed, those that hold rows of the problem.

namespace regard::cpu {

/// a[i * row_stride + x * step] is element (i, x) of an [m][k] matrix.
template <class T>
struct ProductInput {
  const T* data;
  std::int64_t row_stride;
  std::int64_t step;
};

/// One term of a product: b holds f32 (or f64) columns.
template <class V>
struct ScalarTerm {
  using A = typename V::Scalar;
  using B = typename V::Scalar;
  using Column = typename V::Vec;
  REGARD_KERNEL_FN Column load(const B* p) { return V::load(p); }
  REGARD_KERNEL_FN Column broadcast(A a) { return V::set(a); }
  REGARD_KERNEL_FN typename V::Vec add(typename V::Vec sum, Column a, Column b) {
    return V::fma(a, b, sum);
  }
  /// The same, but nothing where b's sign bit is set, whatever a holds, NaN and inf included (a
  /// masked probability is -0, see softmax.h); other terms keep their bits.
  REGARD_KERNEL_FN typename V::Vec add_visible(typename V::Vec sum, Column a, Column b) {
    return V::select(V::sign(b), sum, V::fma(a, b, sum));
  }
};

/// Steps of a product for each line that it prefetches: as many as it has of its own matrix in f32.
inline constexpr int kPrefetchSteps = 16;

/// sum[i][v] += the products of kRows rows of a with b [k][kStride], or [k][stride] where kStride
/// is 0, for vectors [kFirst, kEnd) of b; kPrefetches: advances `ahead` meanwhile.
template <class V, class Term, int kRows, int kVectors, bool kSelect, int kStride = V::kWidth,
          bool kPrefetches = false, int kFirst = 0, int kEnd = kVectors>
REGARD_KERNEL_FN void multiply(ProductInput<typename Term::A> a, const typename Term::B* b,
                               std::int64_t k, typename V::Vec (&sum)[kRows][kVectors],
                               PrefetchCursor* ahead = nullptr, std::int64_t stride = kStride) {
  // Addresses from one pointer take a register for each row; those of 16 rows GCC keeps in vectors.
  constexpr int kPointers = kRows > 8 ? kRows / 4 : 1;
  constexpr int kEach = kRows / kPointers;
  const typename Term::A* at[kPointers];
  REGARD_UNROLL for (int p = 0; p < kPointers; ++p) at[p] = a.data + p * kEach * a.row_stride;
  const auto add_step = [&]() __attribute__((always_inline)) {
    typename Term::Column column[kVectors];
    REGARD_UNROLL for (int v = kFirst; v < kEnd; ++v) column[v] = Term::load(b + v * V::kLanes);
    REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
      const auto scalar = Term::broadcast(at[i / kEach][i % kEach * a.row_stride]);
      REGARD_UNROLL for (int v = kFirst; v < kEnd; ++v) {
        sum[i][v] = kSelect ? Term::add_visible(sum[i][v], scalar, column[v])
                            : Term::add(sum[i][v], scalar, column[v]);
      }
    }
    REGARD_UNROLL for (int p = 0; p < kPointers; ++p) at[p] += a.step;
    b += kStride != 0 ? kStride : stride;
  };
  // Written out by hand GCC spills or reads columns again (docs/dev/decisions/cpu.md); f64 spills
  // anyway.
  if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
    if constexpr (kPrefetches && kRows > 1) {
      constexpr int kPieceSteps = kPrefetchSteps * V::kRows / kRows;
      for (; k >= kPieceSteps; k -= kPieceSteps) {
        prefetch_rows<V::kRows>(ahead);
        // A short step is 1.03 to 1.2 times as fast unrolled, one of 24 multiply-adds 0.98.
        if constexpr (kRows * (kEnd - kFirst) < 24) {
          REGARD_UNROLL_4 for (int x = 0; x < kPieceSteps; ++x) add_step();
        } else {
          REGARD_NO_UNROLL for (int x = 0; x < kPieceSteps; ++x) add_step();
        }
      }
    }
    REGARD_UNROLL_4 for (std::int64_t x = 0; x < k; ++x) add_step();
  } else {
    for (std::int64_t x = 0; x < k; ++x) add_step();
  }
}

/// c = a * b for kRows rows; kMax: max[v] = the greatest of it and what it was. NaN is passed over.
template <class V, class Term, int kRows, int kVectors, bool kPrefetches, bool kMax>
REGARD_KERNEL_FN void score_rows(ProductInput<typename Term::A> a, const typename Term::B* b,
                                 typename V::Scalar* c, std::int64_t k, PrefetchCursor* ahead,
                                 typename V::Vec (&max)[kVectors]) {
  typename V::Vec sum[kRows][kVectors] = {};
  multiply<V, Term, kRows, kVectors, false, V::kWidth, kPrefetches>(a, b, k, sum, ahead);
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      V::store(c + i * V::kWidth + v * V::kLanes, sum[i][v]);
      if constexpr (kMax) max[v] = V::max(sum[i][v], max[v]);
    }
  }
}

/// Calls f(first, Count<kBlock>) for the blocks of [0, size), then f(first, Count<kRest>) while so
/// many are left, and f(i, Count<1>).
template <int kBlock, int kRest = 1, class F>
REGARD_KERNEL_FN void for_blocks(std::int64_t size, F f) {
  std::int64_t i = 0;
  for (; i + kBlock <= size; i += kBlock) f(i, Count<kBlock>{});
  if constexpr (kRest > 1) {
    for (; i + kRest <= size; i += kRest) f(i, Count<kRest>{});
  }
  for (; i < size; ++i) f(i, Count<1>{});
}

/// Rows of a block: one vector of columns takes twice as many, or its few sums would wait for each
/// other. Rows are summed alone, so that their number changes no bits.
template <class V, int kVectors>
inline constexpr int kBlockRows = kVectors == 1 ? 2 * V::kRows : V::kRows;

/// scores^T [m][W] = a [m][k] * b [k][W]; kMax: max [W] grows to the greatest of each column.
/// kPrefetches: see multiply; `ahead` is used up.
template <class V, class Term, int kVectors, bool kPrefetches = false, bool kMax = true>
static void scores_of(ProductInput<typename Term::A> a, const typename Term::B* b,
                      typename V::Scalar* c, std::int64_t m, std::int64_t k,
                      typename V::Scalar* max, PrefetchCursor* ahead = nullptr) {
  PrefetchCursor cursor{};  // in registers
  if (kPrefetches) cursor = *ahead;
  typename V::Vec row_max[kVectors]{};
  REGARD_UNROLL for (int v = 0; kMax && v < kVectors; ++v) row_max[v] =
      V::load(max + v * V::kLanes);
  // 4 rows of as many vectors as there can be take as long as 4 times one.
  constexpr int kRest = kVectors < V::kVectors ? 4 : 1;
  for_blocks<kBlockRows<V, kVectors>, kRest>(
      m, [&](std::int64_t i, auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        score_rows<V, Term, kRows, kVectors, kPrefetches, kMax>(a, b, c + i * V::kWidth, k, &cursor,
                                                                row_max);
        a.data += kRows * a.row_stride;
      });
  REGARD_UNROLL for (int v = 0; kMax && v < kVectors; ++v)
      V::store(max + v * V::kLanes, row_max[v]);
  if (kPrefetches) *ahead = cursor;
}

/// c = c * rescale + sum; c = sum where rescale is null.
template <class V, int kRows, int kVectors>
REGARD_KERNEL_FN void add_sums(const typename V::Vec (&sum)[kRows][kVectors],
                               const typename V::Scalar* rescale, typename V::Scalar* c) {
  if (rescale == nullptr) {
    REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        V::store(c + i * V::kWidth + v * V::kLanes, sum[i][v]);
      }
    }
    return;
  }
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      typename V::Scalar* const out = c + i * V::kWidth + v * V::kLanes;
      V::store(out, V::fma(V::load(out), V::load(rescale + v * V::kLanes), sum[i][v]));
    }
  }
}

/// c = c * rescale + a * b for kRows rows; c = a * b where rescale is null.
template <class V, class Term, int kRows, int kVectors, bool kSelect, bool kPrefetches>
REGARD_KERNEL_FN void add_rows(ProductInput<typename Term::A> a, const typename Term::B* b,
                               typename V::Scalar* c, std::int64_t k,
                               const typename V::Scalar* rescale, PrefetchCursor* ahead) {
  prefetch_sums<V, kRows, kVectors>(c, V::kWidth);
  typename V::Vec sum[kRows][kVectors] = {};
  multiply<V, Term, kRows, kVectors, kSelect, V::kWidth, kPrefetches>(a, b, k, sum, ahead);
  add_sums<V>(sum, rescale, c);
}

/// c [m][W] = c * rescale [W] + a [m][k] * b [k][W], or a * b alone where rescale is null; each
/// tile is summed on its own first, which keeps chains short. kSelect: see Term::add_visible;
/// kPrefetches: as in scores_of.
template <class V, class Term, int kVectors, bool kSelect, bool kPrefetches = false>
static void add_product(ProductInput<typename Term::A> a, const typename Term::B* b,
                        typename V::Scalar* c, std::int64_t m, std::int64_t k,
                        const typename V::Scalar* rescale, PrefetchCursor* ahead = nullptr) {
  PrefetchCursor cursor{};  // in registers
  if (kPrefetches) cursor = *ahead;
  for_blocks<kBlockRows<V, kVectors>>(
      m, [&](std::int64_t i, auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        add_rows<V, Term, kRows, kVectors, kSelect, kPrefetches>(a, b, c + i * V::kWidth, k,
                                                                 rescale, &cursor);
        a.data += kRows * a.row_stride;
      });
  if (kPrefetches) *ahead = cursor;
}

/// The steps of a product that each vector of b takes part in: both ends grow with the vector, and
/// begin[kVectors - 1] <= end[0].
template <int kVectors>
struct StepRanges {
  std::int64_t begin[kVectors];
  std::int64_t end[kVectors];
};

/// Calls f(Count<first>, Count<end>, begin, end) for each run of steps in which vectors [first,
/// end) take part, in the order of the steps.
template <int kVectors, int kAt = 1, class F>
REGARD_KERNEL_FN void for_stages(const StepRanges<kVectors>& steps, F f) {
  if constexpr (kAt < kVectors) {
    f(Count<0>{}, Count<kAt>{}, steps.begin[kAt - 1], steps.begin[kAt]);
    for_stages<kVectors, kAt + 1>(steps, f);
  } else if constexpr (kAt == kVectors) {
    f(Count<0>{}, Count<kVectors>{}, steps.begin[kVectors - 1], steps.end[0]);
    for_stages<kVectors, kAt + 1>(steps, f);
  } else if constexpr (kAt < 2 * kVectors) {
    constexpr int kFirst = kAt - kVectors;
    f(Count<kFirst>{}, Count<kVectors>{}, steps.end[kFirst - 1], steps.end[kFirst]);
    for_stages<kVectors, kAt + 1>(steps, f);
  }
}

/// add_product where vector v of b takes part in the steps of its range alone. What it leaves out
/// would add 0 times something finite: bits are those of all steps.
template <class V, class Term, int kVectors, bool kPrefetches>
static void add_product_of_ranges(ProductInput<typename Term::A> a, const typename Term::B* b,
                                  typename V::Scalar* c, std::int64_t m,
                                  const StepRanges<kVectors>& steps,
                                  const typename V::Scalar* rescale, PrefetchCursor* ahead) {
  for_blocks<kBlockRows<V, kVectors>>(
      m, [&](std::int64_t i, auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        prefetch_sums<V, kRows, kVectors>(c + i * V::kWidth, V::kWidth);
        typename V::Vec sum[kRows][kVectors] = {};
        for_stages(
            steps, [&](auto first, auto end, std::int64_t from, std::int64_t to)
                       __attribute__((always_inline)) {
                         constexpr int kFirst = decltype(first)::value, kEnd = decltype(end)::value;
                         constexpr bool kAhead = kPrefetches && kEnd - kFirst == kVectors;
                         const ProductInput<typename Term::A> part = {a.data + from * a.step,
                                                                      a.row_stride, a.step};
                         multiply<V, Term, kRows, kVectors, false, V::kWidth, kAhead, kFirst, kEnd>(
                             part, b + from * V::kWidth, to - from, sum, ahead);
                       });
        add_sums<V>(sum, rescale, c + i * V::kWidth);
        a.data += kRows * a.row_stride;
      });
}

/// Calls f(Count<vectors>), for 1 <= vectors <= kMaxVectors.
template <int kMaxVectors, class F>
REGARD_KERNEL_FN void with_vectors(int vectors, F f) {
  if constexpr (kMaxVectors > 1) {
    if (vectors < kMaxVectors) return with_vectors<kMaxVectors - 1>(vectors, f);
  }
  f(Count<kMaxVectors>{});
}

}  // namespace regard::cpu

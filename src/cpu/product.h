#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// The blocked product that every backend of the baseline shares. Queries lie in vector lanes: with
// W = V::kWidth, scores^T [keys][W] = K [keys][D] * Q^T [D][W], and out^T [D][W] = V^T [D][keys] *
// probs^T [keys][W]. So K and V are read in place, element by element, at any stride, and nothing
// is summed across lanes: a row's bits never depend on its neighbours.

namespace regard::cpu {

#if defined(__clang__)
#define REGARD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define REGARD_UNROLL _Pragma("GCC unroll 16")
#endif

/// a[i * row_stride + x * step] is element (i, x) of an [m][k] matrix.
template <class T>
struct ProductInput {
  const T* data;
  std::int64_t row_stride;
  std::int64_t step;
};

/// c = (carry ? c * carry[w] : 0) + a * b for kRows rows of c; b is [k][W], c is [kRows][W].
/// kSelect: where b's sign bit is set the term is 0 whatever a holds, NaN and inf included (a
/// masked probability is -0, see softmax.h); other terms keep their bits.
template <class V, int kRows, bool kSelect>
REGARD_KERNEL_FN void product_rows(ProductInput<typename V::Scalar> a, const typename V::Scalar* b,
                                   typename V::Scalar* c, std::int64_t k,
                                   const typename V::Scalar* carry) {
  using Vec = typename V::Vec;
  constexpr int kVectors = V::kVectors;
  Vec sum[kRows][kVectors] = {};
  const typename V::Scalar* at = a.data;
  for (std::int64_t x = 0; x < k; ++x) {
    Vec column[kVectors];
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) column[v] = V::load(b + v * V::kLanes);
    REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
      const Vec scalar = V::set(at[i * a.row_stride]);
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        Vec next = V::fma(scalar, column[v], sum[i][v]);
        if constexpr (kSelect) next = V::select(V::sign(column[v]), sum[i][v], next);
        sum[i][v] = next;
      }
    }
    at += a.step;
    b += V::kWidth;
  }
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      typename V::Scalar* const out = c + i * V::kWidth + v * V::kLanes;
      if (carry != nullptr) sum[i][v] += V::load(out) * V::load(carry + v * V::kLanes);
      V::store(out, sum[i][v]);
    }
  }
}

template <class V, bool kSelect>
static void product_loop(ProductInput<typename V::Scalar> a, const typename V::Scalar* b,
                         typename V::Scalar* c, std::int64_t m, std::int64_t k,
                         const typename V::Scalar* carry) {
  std::int64_t i = 0;
  for (; i + V::kRows <= m; i += V::kRows) {
    product_rows<V, V::kRows, kSelect>(a, b, c + i * V::kWidth, k, carry);
    a.data += V::kRows * a.row_stride;
  }
  for (; i < m; ++i) {
    product_rows<V, 1, kSelect>(a, b, c + i * V::kWidth, k, carry);
    a.data += a.row_stride;
  }
}

/// scores^T [m][W] = a [m][k] * b [k][W].
template <class V>
REGARD_KERNEL_FN void product(ProductInput<typename V::Scalar> a, const typename V::Scalar* b,
                              typename V::Scalar* c, std::int64_t m, std::int64_t k) {
  product_loop<V, false>(a, b, c, m, k, nullptr);
}

/// c [m][W] = c * carry [W] + a [m][k] * b [k][W]; each tile is summed on its own first, which
/// keeps chains short. `select`: see product_rows.
template <class V>
REGARD_KERNEL_FN void product_onto(ProductInput<typename V::Scalar> a, const typename V::Scalar* b,
                                   typename V::Scalar* c, std::int64_t m, std::int64_t k,
                                   const typename V::Scalar* carry, bool select) {
  if (select) {
    product_loop<V, true>(a, b, c, m, k, carry);
  } else {
    product_loop<V, false>(a, b, c, m, k, carry);
  }
}

}  // namespace regard::cpu

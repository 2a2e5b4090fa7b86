#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// The vector vocabulary of the baseline: 16-byte vectors in the compilers' own portable notation
// (SSE2, NEON, or scalars where there are none). GCC's -O2 would leave loops of a run-time
// length scalar.
//
// A vocabulary is a struct with Scalar, Vec, Int, Mask and the functions below; +, -, *, / and
// comparisons are the compiler's. Algorithms are templates over it.

namespace regard::simd_scalar {

template <class T>
struct VecOf;
template <>
struct VecOf<float> {
  typedef float Vec __attribute__((vector_size(16)));
  typedef std::int32_t Int __attribute__((vector_size(16)));
  using IntScalar = std::int32_t;
};
template <>
struct VecOf<double> {
  typedef double Vec __attribute__((vector_size(16)));
  typedef std::int64_t Int __attribute__((vector_size(16)));
  using IntScalar = std::int64_t;
};

template <class T>
struct Simd {
  using Scalar = T;
  using Vec = typename VecOf<T>::Vec;
  using Int = typename VecOf<T>::Int;
  using Mask = Int;
  using IntScalar = typename VecOf<T>::IntScalar;

  static constexpr int kLanes = 16 / sizeof(T);
  // 4 x 2 accumulators, 2 columns and a broadcast fit 16 registers: 6 x 2 measured no better.
  static constexpr int kRows = 4;
  static constexpr int kVectors = 2;
  static constexpr int kWidth = kVectors * kLanes;  // rows of a strip

  REGARD_KERNEL_FN Vec load(const T* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  REGARD_KERNEL_FN void store(T* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
  REGARD_KERNEL_FN Vec set(T x) { return x - Vec{}; }
  REGARD_KERNEL_FN Vec select(Mask m, Vec a, Vec b) { return m ? a : b; }
  REGARD_KERNEL_FN Int to_bits(Vec v) { return __builtin_bit_cast(Int, v); }
  REGARD_KERNEL_FN Vec from_bits(Int i) { return __builtin_bit_cast(Vec, i); }
  /// All ones where the sign bit is set, -0 and NaN included.
  REGARD_KERNEL_FN Mask sign(Vec v) { return to_bits(v) < 0; }
};

}  // namespace regard::simd_scalar

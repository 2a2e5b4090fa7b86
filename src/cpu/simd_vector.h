#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// What every vector vocabulary shares, in the compilers' own portable notation of vectors. Loops
// left to the vectoriser were 4x slower: GCC's -O2 leaves loops of a run-time length scalar.
//
// A vocabulary is a struct with Scalar, Vec, Int, Mask, the block of the product (kRows, kVectors)
// and the functions below and fma; +, -, *, / and comparisons are the compiler's. Algorithms are
// templates over it.

namespace regard::cpu {

template <class T, int kBytes>
struct VectorTypes;
template <int kBytes>
struct VectorTypes<float, kBytes> {
  typedef float Vec __attribute__((vector_size(kBytes)));
  typedef std::int32_t Int __attribute__((vector_size(kBytes)));
  using IntScalar = std::int32_t;
};
template <int kBytes>
struct VectorTypes<double, kBytes> {
  typedef double Vec __attribute__((vector_size(kBytes)));
  typedef std::int64_t Int __attribute__((vector_size(kBytes)));
  using IntScalar = std::int64_t;
};

template <class T, int kBytes>
struct SimdVector {
  using Scalar = T;
  using Vec = typename VectorTypes<T, kBytes>::Vec;
  using Int = typename VectorTypes<T, kBytes>::Int;
  using Mask = Int;
  using IntScalar = typename VectorTypes<T, kBytes>::IntScalar;

  static constexpr int kLanes = kBytes / sizeof(T);

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

}  // namespace regard::cpu

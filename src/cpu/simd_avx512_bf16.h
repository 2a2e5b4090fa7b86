#pragma once

#include "cpu/problem.h"
#include "cpu/simd_avx512.h"

// AVX-512 with the dot product of bf16 pairs. Clang 16 crashes over its intrinsics and takes the
// portable notation.

namespace regard::simd_avx512_bf16 {

using simd_avx512::IntVec;
using simd_avx512::VecOf;

/// Two bf16 in 32 bits, the first in the low half.
#if defined(__AVX512BF16__) && !defined(__clang__)

/// sum + a.high * b.high + a.low * b.low, rounded after each; denormals count as 0.
REGARD_KERNEL_FN VecOf<float> dot_of_pairs(VecOf<float> sum, IntVec a, IntVec b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
/// Pairs of low[i] and high[i], rounded to nearest even.
REGARD_KERNEL_FN IntVec pairs_of(VecOf<float> low, VecOf<float> high) {
  // Lane i of the low half of the conversion, then lane i of its high half.
  typedef std::int16_t Words __attribute__((vector_size(64)));
  constexpr Words kOrder = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (IntVec)_mm512_permutexvar_epi16((__m512i)kOrder, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

#else

REGARD_KERNEL_FN VecOf<float> dot_of_pairs(VecOf<float> sum, IntVec a, IntVec b) {
  const auto float_of = [](IntVec bits) __attribute__((always_inline)) {
    return __builtin_bit_cast(VecOf<float>, bits);
  };
  const IntVec high = IntVec{} + static_cast<std::int32_t>(0xffff0000u);
  sum = simd_avx512::fused(float_of(a & high), float_of(b & high), sum);
  return simd_avx512::fused(float_of(a << 16), float_of(b << 16), sum);
}
REGARD_KERNEL_FN IntVec pairs_of(VecOf<float> low, VecOf<float> high) {
  IntVec pairs{};
  for (int x = 0; x < 16; ++x) {
    pairs[x] = static_cast<std::int32_t>(static_cast<std::uint32_t>(cpu::to_bf16(high[x])) << 16 |
                                         cpu::to_bf16(low[x]));
  }
  return pairs;
}

#endif

template <class T>
struct Simd : simd_avx512::Simd<T> {
  using Vec = VecOf<float>;
  REGARD_KERNEL_FN Vec dot(Vec sum, IntVec a, IntVec b) { return dot_of_pairs(sum, a, b); }
  REGARD_KERNEL_FN IntVec to_pairs(Vec low, Vec high) { return pairs_of(low, high); }
};

}  // namespace regard::simd_avx512_bf16

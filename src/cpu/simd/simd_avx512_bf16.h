#pragma once

#include "cpu/problem.h"
#include "cpu/simd/simd_avx512.h"

// AVX-512 with the dot product of bf16 pairs; in portable notation where AVX-512 is
// (simd_avx512.h).

namespace regard::simd_avx512_bf16 {

using simd_avx512::IntVec;
using simd_avx512::VecOf;

/// Two bf16 in 32 bits, the first in the low half.
#if defined(__AVX512F__)

/// sum + a.high * b.high + a.low * b.low, rounded after each; denormals count as 0.
REGARD_KERNEL_FN VecOf<float> dot_of_pairs(VecOf<float> sum, IntVec a, IntVec b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
/// bf16 of low's lanes, then of high's; to nearest even, denormals become 0.
REGARD_KERNEL_FN IntVec rounded_words(VecOf<float> low, VecOf<float> high) {
  return (IntVec)_mm512_cvtne2ps_pbh(high, low);
}
/// Word i of the low half, then word i of the high half.
REGARD_KERNEL_FN IntVec paired_words(IntVec words) {
  typedef std::int16_t Words __attribute__((vector_size(64)));
  constexpr Words kOrder = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (IntVec)_mm512_permutexvar_epi16((__m512i)kOrder, (__m512i)words);
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
REGARD_KERNEL_FN IntVec rounded_words(VecOf<float> low, VecOf<float> high) {
  std::uint16_t words[32];
  cpu::SimdVector<float, 64>::store_bf16(words, low);
  cpu::SimdVector<float, 64>::store_bf16(words + 16, high);
  IntVec bits;
  __builtin_memcpy(&bits, words, sizeof(bits));
  return bits;
}
REGARD_KERNEL_FN IntVec paired_words(IntVec words) {
  using Base = cpu::SimdVector<float, 64>;
  std::uint16_t halves[32];
  __builtin_memcpy(halves, &words, sizeof(halves));
  const auto low = Base::to_unsigned(Base::load_bf16(halves)) >> 16;
  return (IntVec)(Base::to_unsigned(Base::load_bf16(halves + 16)) | low);
}

#endif

/// The low and the high half of the words, each to an address.
REGARD_KERNEL_FN void store_words(IntVec words, std::uint16_t* low, std::uint16_t* high) {
  const auto first = __builtin_shufflevector(words, words, 0, 1, 2, 3, 4, 5, 6, 7);
  const auto last = __builtin_shufflevector(words, words, 8, 9, 10, 11, 12, 13, 14, 15);
  __builtin_memcpy(low, &first, sizeof(first));
  __builtin_memcpy(high, &last, sizeof(last));
}

template <class T>
struct Simd : simd_avx512::Simd<T> {
  using Vec = VecOf<float>;
  REGARD_KERNEL_FN Vec dot(Vec sum, IntVec a, IntVec b) { return dot_of_pairs(sum, a, b); }
  REGARD_KERNEL_FN IntVec rounded(Vec low, Vec high) { return rounded_words(low, high); }
  REGARD_KERNEL_FN void store_rounded(IntVec words, std::uint16_t* low, std::uint16_t* high) {
    store_words(words, low, high);
  }
  REGARD_KERNEL_FN IntVec paired(IntVec words) { return paired_words(words); }
  REGARD_KERNEL_FN IntVec to_pairs(Vec low, Vec high) { return paired(rounded(low, high)); }
};

}  // namespace regard::simd_avx512_bf16

#pragma once

#include <immintrin.h>

#include "cpu/simd/simd_vector.h"

// The vector vocabulary of AVX2 with FMA and F16C: 32-byte vectors.

namespace regard::simd_avx2 {

REGARD_KERNEL_FN __m256 fused(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
REGARD_KERNEL_FN __m256d fused(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }

REGARD_KERNEL_FN __m256 roots(__m256 x) { return _mm256_sqrt_ps(x); }
REGARD_KERNEL_FN __m256d roots(__m256d x) { return _mm256_sqrt_pd(x); }

/// See SimdVector::sum_rows; its own shuffles would cross halves, at twice the cost.
REGARD_KERNEL_FN __m256 sums(__m256 (&a)[8]) {
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
  return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
}
REGARD_KERNEL_FN __m256d sums(__m256d (&a)[4]) {
  const __m256d low = _mm256_hadd_pd(a[0], a[1]), high = _mm256_hadd_pd(a[2], a[3]);
  return _mm256_permute2f128_pd(low, high, 0x20) + _mm256_permute2f128_pd(low, high, 0x31);
}

/// See SimdVector::transpose; likewise.
REGARD_KERNEL_FN void exchange(__m256 (&a)[8]) {
  __m256 quads[8];  // of columns 0 to 3 and 4 to 7: quads[i] holds column i % 4 of rows 0 or 4 on
  REGARD_UNROLL for (int i = 0; i < 2; ++i) {
    __m256* const of = a + 4 * i;
    const __m256 low = _mm256_unpacklo_ps(of[0], of[1]), high = _mm256_unpackhi_ps(of[0], of[1]);
    const __m256 low2 = _mm256_unpacklo_ps(of[2], of[3]), high2 = _mm256_unpackhi_ps(of[2], of[3]);
    quads[4 * i] = _mm256_shuffle_ps(low, low2, 0x44);
    quads[4 * i + 1] = _mm256_shuffle_ps(low, low2, 0xee);
    quads[4 * i + 2] = _mm256_shuffle_ps(high, high2, 0x44);
    quads[4 * i + 3] = _mm256_shuffle_ps(high, high2, 0xee);
  }
  REGARD_UNROLL for (int i = 0; i < 4; ++i) {
    a[i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x20);
    a[4 + i] = _mm256_permute2f128_ps(quads[i], quads[4 + i], 0x31);
  }
}
REGARD_KERNEL_FN void exchange(__m256d (&a)[4]) {
  const __m256d even = _mm256_unpacklo_pd(a[0], a[1]), odd = _mm256_unpackhi_pd(a[0], a[1]);
  const __m256d even2 = _mm256_unpacklo_pd(a[2], a[3]), odd2 = _mm256_unpackhi_pd(a[2], a[3]);
  a[0] = _mm256_permute2f128_pd(even, even2, 0x20);
  a[1] = _mm256_permute2f128_pd(odd, odd2, 0x20);
  a[2] = _mm256_permute2f128_pd(even, even2, 0x31);
  a[3] = _mm256_permute2f128_pd(odd, odd2, 0x31);
}

REGARD_KERNEL_FN __m128i eight_bytes(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}
/// As many bytes as a vector of T has lanes.
REGARD_KERNEL_FN __m256 read_bytes(const char* p, float) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p)));
}
REGARD_KERNEL_FN __m256d read_bytes(const char* p, double) {
  return _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(_mm_loadu_si32(p)));
}
/// As many codes of 4 bits: the first stands lowest.
REGARD_KERNEL_FN __m256 read_u4(const char* p, float) {
  const __m256i codes = _mm256_broadcastd_epi32(_mm_loadu_si32(p));
  const __m256i shifted = _mm256_srlv_epi32(codes, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
}
REGARD_KERNEL_FN __m256d read_u4(const char* p, double) {
  return cpu::SimdVector<double, 32>::load_u4(p);
}
/// By way of f16, whose exponents are 8 more: a code's sign goes to bit 15, the rest below bit 14.
REGARD_KERNEL_FN __m256 read_f8e4m3(const std::uint8_t* p) {
  const __m128i shifted = _mm_slli_epi16(_mm_cvtepi8_epi16(eight_bytes(p)), 7);
  const __m128i half = _mm_and_si128(shifted, _mm_set1_epi16(static_cast<short>(0xbfff)));
  const __m128i is_nan =
      _mm_cmpeq_epi16(_mm_and_si128(half, _mm_set1_epi16(0x7fff)), _mm_set1_epi16(0x7f << 7));
  const __m256 number = _mm256_cvtph_ps(half) * _mm256_set1_ps(256.0f);
  return _mm256_or_ps(number, (__m256)_mm256_cvtepi16_epi32(is_nan));
}
REGARD_KERNEL_FN __m256 read_f8e5m2(const std::uint8_t* p) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(eight_bytes(p)), 8));
}

template <class T>
struct Simd : cpu::SimdVector<T, 32> {
  using Base = cpu::SimdVector<T, 32>;
  using Vec = typename Base::Vec;
  // 4 x 3 accumulators, 3 columns and a broadcast are the 16 registers.
  static constexpr int kRows = 4;
  static constexpr int kVectors = 3;
  static constexpr int kWidth = kVectors * Base::kLanes;  // rows of a row block

  /// a * b + c, rounded once.
  REGARD_KERNEL_FN Vec fma(Vec a, Vec b, Vec c) { return fused(a, b, c); }
  REGARD_KERNEL_FN Vec sqrt(Vec x) { return roots(x); }

  REGARD_KERNEL_FN Vec sum_rows(Vec (&rows)[Base::kLanes]) { return sums(rows); }
  REGARD_KERNEL_FN void transpose(Vec (&rows)[Base::kLanes]) { exchange(rows); }

  REGARD_KERNEL_FN void multiply_wide(typename Base::Unsigned x, std::uint32_t by,
                                      typename Base::Unsigned* high, typename Base::Unsigned* low) {
    const __m256i factor = _mm256_set1_epi32(static_cast<int>(by));
    const __m256i even = _mm256_mul_epu32((__m256i)x, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), factor);
    *low = (typename Base::Unsigned)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = (typename Base::Unsigned)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  }

  /// GCC 12 widens the portable notation in five instructions.
  REGARD_KERNEL_FN Vec load_bf16(const std::uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
  }
  REGARD_KERNEL_FN Vec load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// In portable notation GCC 12 converts byte by byte: 4 times as slow as memory.
  REGARD_KERNEL_FN Vec load_bytes(const char* p) { return read_bytes(p, T()); }
  REGARD_KERNEL_FN Vec load_u4(const char* p) { return read_u4(p, T()); }
  using Int = typename Base::Int;
  /// Twice as many bytes as lanes, with their signs, as words of 16 bits.
  REGARD_KERNEL_FN Int words_of_bytes(const char* p) {
    return (Int)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// sum + a.high * b.high + a.low * b.low, of words with signs.
  REGARD_KERNEL_FN Int add_words(Int sum, Int a, Int b) {
    return sum + (Int)_mm256_madd_epi16((__m256i)a, (__m256i)b);
  }
  /// Words of a in the low halves, of b in the high ones: those of the lanes' first half, and of
  /// the second.
  REGARD_KERNEL_FN void pair_words(Int a, Int b, Int* to) {
    const __m256i low = _mm256_unpacklo_epi16((__m256i)a, (__m256i)b),
                  high = _mm256_unpackhi_epi16((__m256i)a, (__m256i)b);
    to[0] = (Int)_mm256_permute2x128_si256(low, high, 0x20);
    to[1] = (Int)_mm256_permute2x128_si256(low, high, 0x31);
  }
  REGARD_KERNEL_FN Vec load_f8e4m3(const std::uint8_t* p) { return read_f8e4m3(p); }
  REGARD_KERNEL_FN Vec load_f8e5m2(const std::uint8_t* p) { return read_f8e5m2(p); }
  REGARD_KERNEL_FN void store_f16(std::uint16_t* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace regard::simd_avx2

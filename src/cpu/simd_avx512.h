#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#else
#include "cpu/problem.h"
#endif

#include "cpu/simd_vector.h"

// The vector vocabulary of AVX-512 (F, BW, VL, DQ), and of its BF16 dot product: 64-byte vectors.
// Where the compiler may not use these instructions (REGARD_EMULATE_AVX512, for tests on other
// machines) the same functions stand in portable notation.

namespace regard::simd_avx512 {

template <class T>
using VecOf = typename cpu::SimdVector<T, 64>::Vec;
using IntVec = cpu::SimdVector<float, 64>::Int;

#if defined(__AVX512F__)

// GCC 12 warns of its own headers' undefined operand in the forms without a mask.
constexpr __mmask16 kAll = 0xffff;

REGARD_KERNEL_FN __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
REGARD_KERNEL_FN __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
/// t - floor(t); 0 for infinities.
REGARD_KERNEL_FN __m512 fraction(__m512 t) { return _mm512_maskz_reduce_ps(kAll, t, 0x09); }
/// p * 2^floor(t).
REGARD_KERNEL_FN __m512 scale(__m512 p, __m512 t) { return _mm512_maskz_scalef_ps(kAll, p, t); }
REGARD_KERNEL_FN __m512 read_bf16(const std::uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (__m512)_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, half), 16);
}
/// See SimdVector::sum_rows.
REGARD_KERNEL_FN __m512 sums(__m512 (&a)[16]) {
  __m512 quads[4];
  REGARD_UNROLL for (int i = 0; i < 4; ++i) {
    __m512* const of = a + 4 * i;  // within each quarter: of[0] of[1] of[0] of[1], and the others
    const __m512 low =
        _mm512_maskz_unpacklo_ps(kAll, of[0], of[1]) + _mm512_maskz_unpackhi_ps(kAll, of[0], of[1]);
    const __m512 high =
        _mm512_maskz_unpacklo_ps(kAll, of[2], of[3]) + _mm512_maskz_unpackhi_ps(kAll, of[2], of[3]);
    quads[i] = _mm512_maskz_shuffle_ps(kAll, low, high, 0x44) +
               _mm512_maskz_shuffle_ps(kAll, low, high, 0xee);
  }
  const __m512 first = _mm512_maskz_shuffle_f32x4(kAll, quads[0], quads[1], 0x44) +
                       _mm512_maskz_shuffle_f32x4(kAll, quads[0], quads[1], 0xee);
  const __m512 last = _mm512_maskz_shuffle_f32x4(kAll, quads[2], quads[3], 0x44) +
                      _mm512_maskz_shuffle_f32x4(kAll, quads[2], quads[3], 0xee);
  return _mm512_maskz_shuffle_f32x4(kAll, first, last, 0x88) +
         _mm512_maskz_shuffle_f32x4(kAll, first, last, 0xdd);
}
REGARD_KERNEL_FN __m512 read_f16(const std::uint16_t* p) {
  return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
REGARD_KERNEL_FN void write_f16(std::uint16_t* p, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(kAll, v, _MM_FROUND_TO_NEAREST_INT));
}

#else

template <class Vec>
REGARD_KERNEL_FN Vec fused(Vec a, Vec b, Vec c) {
  for (unsigned x = 0; x < sizeof(Vec) / sizeof(a[0]); ++x) {
    if constexpr (sizeof(a[0]) == sizeof(float)) {
      c[x] = __builtin_fmaf(a[x], b[x], c[x]);
    } else {
      c[x] = __builtin_fma(a[x], b[x], c[x]);
    }
  }
  return c;
}
REGARD_KERNEL_FN VecOf<float> fraction(VecOf<float> t) {
  for (int x = 0; x < 16; ++x) {
    t[x] = __builtin_isinf(t[x]) ? 0.0f : t[x] - __builtin_floorf(t[x]);
  }
  return t;
}
REGARD_KERNEL_FN VecOf<float> scale(VecOf<float> p, VecOf<float> t) {
  for (int x = 0; x < 16; ++x) {
    const float whole = __builtin_floorf(t[x]);
    p[x] = whole < -200.0f ? 0.0f : p[x] * static_cast<float>(__builtin_exp2(whole));
  }
  return p;
}
REGARD_KERNEL_FN VecOf<float> read_bf16(const std::uint16_t* p) {
  return cpu::SimdVector<float, 64>::load_bf16(p);
}
REGARD_KERNEL_FN VecOf<float> sums(VecOf<float> (&a)[16]) {
  return cpu::SimdVector<float, 64>::sum_rows(a);
}
REGARD_KERNEL_FN VecOf<float> read_f16(const std::uint16_t* p) {
  VecOf<float> v;
  for (int x = 0; x < 16; ++x) v[x] = cpu::from_f16(p[x]);
  return v;
}
REGARD_KERNEL_FN void write_f16(std::uint16_t* p, VecOf<float> v) {
  for (int x = 0; x < 16; ++x) p[x] = cpu::to_f16(v[x]);
}

#endif

template <class T>
struct Simd : cpu::SimdVector<T, 64> {
  using Base = cpu::SimdVector<T, 64>;
  using Vec = typename Base::Vec;
  // 8 x 3 accumulators, 3 columns and a broadcast of 32 registers.
  static constexpr int kRows = 8;
  static constexpr int kVectors = 3;
  static constexpr int kWidth = kVectors * Base::kLanes;  // rows of a strip

  /// a * b + c, rounded once.
  REGARD_KERNEL_FN Vec fma(Vec a, Vec b, Vec c) { return fused(a, b, c); }

  REGARD_KERNEL_FN Vec sum_rows(Vec (&rows)[Base::kLanes]) { return sums(rows); }
  REGARD_KERNEL_FN Vec load_bf16(const std::uint16_t* p) { return read_bf16(p); }
  REGARD_KERNEL_FN Vec load_f16(const std::uint16_t* p) { return read_f16(p); }
  REGARD_KERNEL_FN void store_f16(std::uint16_t* p, Vec v) { write_f16(p, v); }

  /// t = 2^t, see vector_math.h; here powers of two have an instruction, which also makes
  /// denormals.
  template <int kCount>
  REGARD_KERNEL_FN void exp2(Vec (&t)[kCount]) {
    constexpr float kCoefficients[] = {0x1.46d64ep-10f, 0x1.3d0b92p-7f, 0x1.c68912p-5f,
                                       0x1.ebfd58p-3f,  0x1.62e42cp-1f, 1.0f};
    Vec f[kCount], p[kCount];
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) f[i] = fraction(t[i]);
    // minimax on [0, 1) with 1 at 0: 2.0e-9
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) p[i] = Base::set(0x1.c54174p-13f);
    REGARD_UNROLL for (const float c : kCoefficients) {
      REGARD_UNROLL for (int i = 0; i < kCount; ++i) p[i] = fma(p[i], f[i], Base::set(c));
    }
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) t[i] = scale(p[i], t[i]);
  }
};

}  // namespace regard::simd_avx512

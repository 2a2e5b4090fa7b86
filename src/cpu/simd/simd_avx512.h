#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#else
#include "cpu/problem.h"
#endif

#include "cpu/simd/simd_vector.h"

// The vector vocabulary of AVX-512 (F, BW, VL, DQ), and of its BF16 dot product: 64-byte vectors.
// Where the compiler may not use these instructions (REGARD_EMULATE_AVX512, for tests on other
// machines) the same functions stand in portable notation.

namespace regard::simd_avx512 {

template <class T>
using VecOf = typename cpu::SimdVector<T, 64>::Vec;
using IntVec = cpu::SimdVector<float, 64>::Int;
using WordVec = cpu::SimdVector<float, 64>::Unsigned;

#if defined(__AVX512F__)

// GCC 12 warns of its own headers' undefined operand in the forms without a mask.
constexpr __mmask16 kAll = 0xffff;
constexpr __mmask8 kAllOfDoubles = 0xff;

REGARD_KERNEL_FN __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
REGARD_KERNEL_FN __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
REGARD_KERNEL_FN __m512 roots(__m512 x) { return _mm512_maskz_sqrt_ps(kAll, x); }
REGARD_KERNEL_FN __m512d roots(__m512d x) { return _mm512_maskz_sqrt_pd(kAllOfDoubles, x); }
/// a * b + c, 0 where x < least.
REGARD_KERNEL_FN __m512 fused_from(__m512 x, __m512 min, __m512 a, __m512 b, __m512 c) {
  return _mm512_maskz_fmadd_ps(_mm512_cmp_ps_mask(x, min, _CMP_NLT_UQ), a, b, c);
}
/// Word words[x] % 16 of the table in each lane.
REGARD_KERNEL_FN WordVec look_up(WordVec table, WordVec words) {
  return (WordVec)_mm512_maskz_permutexvar_epi32(kAll, (__m512i)words, (__m512i)table);
}
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
/// See SimdVector::transpose: 4 by 4 within the quarters of four rows, then quarters as elements.
REGARD_KERNEL_FN void exchange(__m512 (&rows)[16]) {
  const auto low_pairs = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return (__m512)_mm512_maskz_unpacklo_pd(kAllOfDoubles, (__m512d)a, (__m512d)b);
  };
  const auto high_pairs = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return (__m512)_mm512_maskz_unpackhi_pd(kAllOfDoubles, (__m512d)a, (__m512d)b);
  };
  REGARD_UNROLL for (int i = 0; i < 16; i += 4) {
    const __m512 low_01 = _mm512_maskz_unpacklo_ps(kAll, rows[i], rows[i + 1]);
    const __m512 high_01 = _mm512_maskz_unpackhi_ps(kAll, rows[i], rows[i + 1]);
    const __m512 low_23 = _mm512_maskz_unpacklo_ps(kAll, rows[i + 2], rows[i + 3]);
    const __m512 high_23 = _mm512_maskz_unpackhi_ps(kAll, rows[i + 2], rows[i + 3]);
    rows[i] = low_pairs(low_01, low_23);
    rows[i + 1] = high_pairs(low_01, low_23);
    rows[i + 2] = low_pairs(high_01, high_23);
    rows[i + 3] = high_pairs(high_01, high_23);
  }
  REGARD_UNROLL for (int i = 0; i < 4; ++i) {
    const __m512 low_01 = _mm512_maskz_shuffle_f32x4(kAll, rows[i], rows[i + 4], 0x44);
    const __m512 high_01 = _mm512_maskz_shuffle_f32x4(kAll, rows[i], rows[i + 4], 0xee);
    const __m512 low_23 = _mm512_maskz_shuffle_f32x4(kAll, rows[i + 8], rows[i + 12], 0x44);
    const __m512 high_23 = _mm512_maskz_shuffle_f32x4(kAll, rows[i + 8], rows[i + 12], 0xee);
    rows[i] = _mm512_maskz_shuffle_f32x4(kAll, low_01, low_23, 0x88);
    rows[i + 4] = _mm512_maskz_shuffle_f32x4(kAll, low_01, low_23, 0xdd);
    rows[i + 8] = _mm512_maskz_shuffle_f32x4(kAll, high_01, high_23, 0x88);
    rows[i + 12] = _mm512_maskz_shuffle_f32x4(kAll, high_01, high_23, 0xdd);
  }
}
REGARD_KERNEL_FN void exchange(__m512d (&rows)[8]) { cpu::SimdVector<double, 64>::transpose(rows); }
REGARD_KERNEL_FN __m512 read_f16(const std::uint16_t* p) {
  return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
REGARD_KERNEL_FN void write_f16(std::uint16_t* p, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(kAll, v, _MM_FROUND_TO_NEAREST_INT));
}

/// See SimdVector::copy_start.
REGARD_KERNEL_FN void copy_first(char* to, const char* from, std::int64_t bytes) {
  const __mmask64 first = (__mmask64{1} << bytes) - 1;
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(first, from));
}

/// See Simd::stream.
REGARD_KERNEL_FN void write_past_caches(char* to, __m512 v) {
  _mm512_stream_ps(reinterpret_cast<float*>(to), v);
}
REGARD_KERNEL_FN void write_past_caches(char* to, __m512d v) {
  _mm512_stream_pd(reinterpret_cast<double*>(to), v);
}

REGARD_KERNEL_FN __m128i sixteen_bytes(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
/// As many bytes as a vector of T has lanes.
REGARD_KERNEL_FN __m512 read_bytes(const char* p, float) {
  return _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepi8_epi32(kAll, sixteen_bytes(p)));
}
/// Twice as many bytes, with their signs, as words of 16 bits.
REGARD_KERNEL_FN IntVec read_words(const char* p) {
  constexpr __mmask32 kAllWords = 0xffffffff;
  return (IntVec)_mm512_maskz_cvtepi8_epi16(
      kAllWords, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// sum + a.high * b.high + a.low * b.low, of words with signs.
REGARD_KERNEL_FN IntVec sum_of_words(IntVec sum, IntVec a, IntVec b) {
  constexpr __mmask16 kAllPairs = 0xffff;
  return sum + (IntVec)_mm512_maskz_madd_epi16(kAllPairs, (__m512i)a, (__m512i)b);
}
/// As many codes of 4 bits as lanes, each in the low bits of its word, the first lowest; what
/// stands above a code is not cleared.
REGARD_KERNEL_FN WordVec read_u4_words(const char* p) {
  const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i shifts =
      _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i codes = _mm512_maskz_permutexvar_epi32(kAll, first, _mm512_castsi128_si512(words));
  return (WordVec)_mm512_maskz_srlv_epi32(kAll, codes, shifts);
}
REGARD_KERNEL_FN __m512 read_u4(const char* p, float) {
  return _mm512_maskz_cvtepi32_ps(kAll, (__m512i)(read_u4_words(p) & 15));
}
REGARD_KERNEL_FN __m512d read_u4(const char* p, double) {
  return cpu::SimdVector<double, 64>::load_u4(p);
}
REGARD_KERNEL_FN __m512d read_bytes(const char* p, double) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm512_maskz_cvtepi32_pd(kAllOfDoubles, _mm256_cvtepi8_epi32(bytes));
}
/// By way of f16, whose exponents are 8 more: a code's sign goes to bit 15, the rest below bit 14.
REGARD_KERNEL_FN __m512 read_f8e4m3(const std::uint8_t* p) {
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen_bytes(p)), 7);
  const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbfff)));
  const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(
      _mm256_and_si256(half, _mm256_set1_epi16(0x7fff)), _mm256_set1_epi16(0x7f << 7));
  const __m512 number = _mm512_maskz_cvtph_ps(kAll, half) * _mm512_set1_ps(256.0f);
  return _mm512_mask_blend_ps(is_nan, number, _mm512_set1_ps(__builtin_nanf("")));
}
REGARD_KERNEL_FN __m512 read_f8e5m2(const std::uint8_t* p) {
  const __m256i codes = _mm256_cvtepu8_epi16(sixteen_bytes(p));
  return _mm512_maskz_cvtph_ps(kAll, _mm256_slli_epi16(codes, 8));
}
/// 32 codes of e5m2 as f16.
REGARD_KERNEL_FN void write_f16_of_f8e5m2(const char* p, std::uint16_t* to) {
  constexpr __mmask32 kAllWords = 0xffffffff;
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  _mm512_storeu_si512(
      to, _mm512_maskz_slli_epi16(kAllWords, _mm512_maskz_cvtepu8_epi16(kAllWords, codes), 8));
}
/// 32 codes of e4m3 as f16 of a 256th, as read_f8e4m3 has them before the NaN; `seen` becomes the
/// greatest of itself and what they are without their signs, doubled.
REGARD_KERNEL_FN void write_f16_of_f8e4m3(const char* p, std::uint16_t* to, IntVec* seen) {
  constexpr __mmask32 kAllWords = 0xffffffff;
  const __m512i shifted = _mm512_maskz_slli_epi16(kAllWords, (__m512i)read_words(p), 7);
  const __m512i half = shifted & _mm512_set1_epi16(static_cast<short>(0xbfff));
  _mm512_storeu_si512(to, half);
  *seen = (IntVec)_mm512_maskz_max_epu16(kAllWords, (__m512i)*seen,
                                         _mm512_maskz_add_epi16(kAllWords, half, half));
}
/// Whether one of them was NaN.
REGARD_KERNEL_FN bool has_nan_of_f8e4m3(IntVec seen) {
  return _mm512_cmpeq_epi16_mask((__m512i)seen, _mm512_set1_epi16(0x7f << 8)) != 0;
}

#else

REGARD_KERNEL_FN void copy_first(char* to, const char* from, std::int64_t bytes) {
  cpu::SimdVector<float, 64>::copy_start(to, from, bytes);
}
template <class Vec>
REGARD_KERNEL_FN void write_past_caches(char* to, Vec v) {
  __builtin_memcpy(to, &v, sizeof(v));
}
REGARD_KERNEL_FN IntVec read_words(const char* p) {
  std::int16_t words[32];
  for (int x = 0; x < 32; ++x) words[x] = static_cast<signed char>(p[x]);
  IntVec made;
  __builtin_memcpy(&made, words, sizeof(made));
  return made;
}
REGARD_KERNEL_FN IntVec sum_of_words(IntVec sum, IntVec a, IntVec b) {
  return sum + (a >> 16) * (b >> 16) + ((a << 16) >> 16) * ((b << 16) >> 16);
}
REGARD_KERNEL_FN WordVec read_u4_words(const char* p) {
  return __builtin_convertvector(cpu::SimdVector<float, 64>::load_u4(p), WordVec);
}
template <class T>
REGARD_KERNEL_FN VecOf<T> read_u4(const char* p, T) {
  return cpu::SimdVector<T, 64>::load_u4(p);
}
template <class T>
REGARD_KERNEL_FN VecOf<T> read_bytes(const char* p, T) {
  return cpu::SimdVector<T, 64>::load_bytes(p);
}
REGARD_KERNEL_FN VecOf<float> read_f8e4m3(const std::uint8_t* p) {
  return cpu::SimdVector<float, 64>::load_f8e4m3(p);
}
REGARD_KERNEL_FN VecOf<float> read_f8e5m2(const std::uint8_t* p) {
  return cpu::SimdVector<float, 64>::load_f8e5m2(p);
}
REGARD_KERNEL_FN void write_f16_of_f8e5m2(const char* p, std::uint16_t* to) {
  for (int x = 0; x < 32; ++x) to[x] = static_cast<std::uint16_t>((p[x] & 0xff) << 8);
}
REGARD_KERNEL_FN void write_f16_of_f8e4m3(const char* p, std::uint16_t* to, IntVec* seen) {
  for (int x = 0; x < 32; ++x) {
    to[x] = static_cast<std::uint16_t>((p[x] & 0x80) << 8 | (p[x] & 0x7f) << 7);
    if ((p[x] & 0x7f) == 0x7f) (*seen)[0] = 1;
  }
}
REGARD_KERNEL_FN bool has_nan_of_f8e4m3(IntVec seen) { return seen[0] != 0; }
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
template <class Vec>
REGARD_KERNEL_FN Vec roots(Vec x) {
  for (unsigned i = 0; i < sizeof(Vec) / sizeof(x[0]); ++i) {
    if constexpr (sizeof(x[0]) == sizeof(float)) {
      x[i] = __builtin_sqrtf(x[i]);
    } else {
      x[i] = __builtin_sqrt(x[i]);
    }
  }
  return x;
}
REGARD_KERNEL_FN VecOf<float> fused_from(VecOf<float> x, VecOf<float> min, VecOf<float> a,
                                         VecOf<float> b, VecOf<float> c) {
  return cpu::SimdVector<float, 64>::clear(x < min, fused(a, b, c));
}
REGARD_KERNEL_FN WordVec look_up(WordVec table, WordVec words) {
  for (int x = 0; x < 16; ++x) words[x] = table[words[x] & 15];
  return words;
}
REGARD_KERNEL_FN VecOf<float> read_bf16(const std::uint16_t* p) {
  return cpu::SimdVector<float, 64>::load_bf16(p);
}
REGARD_KERNEL_FN VecOf<float> sums(VecOf<float> (&a)[16]) {
  return cpu::SimdVector<float, 64>::sum_rows(a);
}
REGARD_KERNEL_FN void exchange(VecOf<float> (&rows)[16]) {
  cpu::SimdVector<float, 64>::transpose(rows);
}
REGARD_KERNEL_FN void exchange(VecOf<double> (&rows)[8]) {
  cpu::SimdVector<double, 64>::transpose(rows);
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

/// Words of a in the low halves, of b in the high ones: those of the lanes' first half, and of the
/// second.
REGARD_KERNEL_FN void pairs_of_words(IntVec a, IntVec b, IntVec* to) {
  typedef std::int16_t Words __attribute__((vector_size(64)));
  to[0] = (IntVec)__builtin_shufflevector((Words)a, (Words)b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5,
                                          37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44,
                                          13, 45, 14, 46, 15, 47);
  to[1] = (IntVec)__builtin_shufflevector((Words)a, (Words)b, 16, 48, 17, 49, 18, 50, 19, 51, 20,
                                          52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27,
                                          59, 28, 60, 29, 61, 30, 62, 31, 63);
}

template <class T>
struct Simd : cpu::SimdVector<T, 64> {
  using Base = cpu::SimdVector<T, 64>;
  using Vec = typename Base::Vec;
  // 8 x 3 accumulators, 3 columns and a broadcast of 32 registers.
  static constexpr int kRows = 8;
  static constexpr int kVectors = 3;
  static constexpr int kWidth = kVectors * Base::kLanes;  // rows of a row block

  /// a * b + c, rounded once.
  REGARD_KERNEL_FN Vec fma(Vec a, Vec b, Vec c) { return fused(a, b, c); }
  REGARD_KERNEL_FN Vec sqrt(Vec x) { return roots(x); }

  REGARD_KERNEL_FN void copy_start(char* to, const char* from, std::int64_t bytes) {
    copy_first(to, from, bytes);
  }
  /// A line at `to`, a multiple of 64, without reading it first. Other threads see it after a fence
  /// alone, which run_tasks has.
  REGARD_KERNEL_FN void stream(char* to, Vec v) { write_past_caches(to, v); }
  REGARD_KERNEL_FN Vec sum_rows(Vec (&rows)[Base::kLanes]) { return sums(rows); }
  REGARD_KERNEL_FN void transpose(Vec (&rows)[Base::kLanes]) { exchange(rows); }
  REGARD_KERNEL_FN Vec load_bf16(const std::uint16_t* p) { return read_bf16(p); }
  REGARD_KERNEL_FN Vec load_f16(const std::uint16_t* p) { return read_f16(p); }
  /// In portable notation GCC 12 converts byte by byte: 4 times as slow as memory.
  REGARD_KERNEL_FN Vec load_bytes(const char* p) { return read_bytes(p, T()); }
  REGARD_KERNEL_FN Vec load_u4(const char* p) { return read_u4(p, T()); }
  REGARD_KERNEL_FN IntVec words_of_bytes(const char* p) { return read_words(p); }
  REGARD_KERNEL_FN IntVec add_words(IntVec sum, IntVec a, IntVec b) {
    return sum_of_words(sum, a, b);
  }
  REGARD_KERNEL_FN void pair_words(IntVec a, IntVec b, IntVec* to) { pairs_of_words(a, b, to); }
  /// What the codes of a group stand for, by code: a register holds all 16.
  REGARD_KERNEL_FN Vec group_table(Vec scale, Vec min) {
    constexpr VecOf<float> kCodes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return fma(kCodes, scale, min);
  }
  REGARD_KERNEL_FN Vec load_u4_from(Vec table, const char* p) {
    return Base::from_unsigned(look_up(Base::to_unsigned(table), read_u4_words(p)));
  }
  REGARD_KERNEL_FN Vec load_f8e4m3(const std::uint8_t* p) { return read_f8e4m3(p); }
  REGARD_KERNEL_FN Vec load_f8e5m2(const std::uint8_t* p) { return read_f8e5m2(p); }
  static constexpr int kF8Codes = 32;  // that become f16 at once
  REGARD_KERNEL_FN void f16_of_f8e5m2(const char* p, std::uint16_t* to) {
    write_f16_of_f8e5m2(p, to);
  }
  /// A 256th of e4m3's numbers, which is exact; a NaN counts as 480 and is noted in `seen`.
  REGARD_KERNEL_FN void f16_of_f8e4m3(const char* p, std::uint16_t* to, IntVec* seen) {
    write_f16_of_f8e4m3(p, to, seen);
  }
  REGARD_KERNEL_FN bool has_f8e4m3_nan(IntVec seen) { return has_nan_of_f8e4m3(seen); }
  REGARD_KERNEL_FN void store_f16(std::uint16_t* p, Vec v) { write_f16(p, v); }

  /// See exp2_nonpositive. A register holds 2^(i / 16), which leaves a polynomial of degree 3 on
  /// [-1/32, 1/32] (minimax, exactly 1 at 0: 1.6e-9). Degree 6 with VREDUCEPS and VSCALEFPS, which
  /// take a pipe twice, takes 1.15 times as long on a Zen 5.
  template <int kCount>
  REGARD_KERNEL_FN void exp2(Vec (&x)[kCount], Vec factor) {
    // Adding 1.5 * 2^19 rounds to a multiple of 1/16, whose bits then stand lowest.
    constexpr float kMagic = 786432.0f;
    // 2^(i / 16) less i in the bits where s << 19 has it, above them the exponent.
    constexpr WordVec kPowers = {0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3,
                                 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
                                 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c,
                                 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};
    const Vec magic = Base::set(kMagic);
    Vec s[kCount], f[kCount], p[kCount], power[kCount];
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) s[i] = fma(x[i], factor, magic);
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) f[i] = fma(x[i], factor, magic - s[i]);
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      const WordVec words = Base::to_unsigned(s[i]);
      power[i] = Base::from_unsigned(look_up(kPowers, words) + (words << 19));
    }
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      p[i] = fma(Base::set(0x1.c6ac6ap-5f), f[i], Base::set(0x1.ebfff4p-3f));
    }
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) p[i] =
        fma(p[i], f[i], Base::set(0x1.62e430p-1f));
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) f[i] = f[i] * power[i];
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      x[i] = fused_from(s[i], Base::set(kMagic - 125.0f), p[i], f[i], power[i]);
    }
  }
};

}  // namespace regard::simd_avx512

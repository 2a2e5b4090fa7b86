#pragma once

#include "cpu/problem.h"
#include "cpu/simd/simd_avx512.h"

// AVX-512 with the dot product of bf16 pairs, VNNI and VBMI, which every processor with bf16 has
// but one whose pairs are slow (cpu_info.cc); in portable notation where AVX-512 is
// (simd_avx512.h).

namespace regard::simd_avx512_bf16 {

using simd_avx512::IntVec;
using simd_avx512::VecOf;

namespace {  // of each unit its own

/// The bytes of the bf16 that codes 0 to 127 of an 8-bit float stand for.
struct F8Bytes {
  alignas(64) std::uint8_t low[128], high[128];
};

/// kHasInfinity: codes from the greatest exponent on are no numbers, else the last one alone.
template <int kMantissa, int kBias, bool kHasInfinity>
constexpr F8Bytes bytes_of_f8() {
  F8Bytes bytes{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> kMantissa, fraction = code & ((1 << kMantissa) - 1);
    int word = 0;
    if (kHasInfinity ? code >= 0x7c : code == 0x7f) {
      word = kHasInfinity ? 0x7f80 | fraction << (7 - kMantissa) : 0x7fc0;
    } else if (code > 0) {
      if (exponent == 0) {
        for (exponent = 1; fraction >> kMantissa == 0; fraction <<= 1) --exponent;
        fraction -= 1 << kMantissa;
      }
      word = (exponent + 127 - kBias) << 7 | fraction << (7 - kMantissa);
    }
    bytes.low[code] = static_cast<std::uint8_t>(word & 0xff);
    bytes.high[code] = static_cast<std::uint8_t>(word >> 8);
  }
  return bytes;
}
constexpr F8Bytes kF8E4M3Bytes = bytes_of_f8<3, 7, false>();
constexpr F8Bytes kF8E5M2Bytes = bytes_of_f8<2, 15, true>();

}  // namespace

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
/// sum + a.high * b.high + a.low * b.low, of words with signs.
REGARD_KERNEL_FN IntVec added_words(IntVec sum, IntVec a, IntVec b) {
  return (IntVec)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
/// sum + the products of the four bytes of each lane: codes without signs, numbers with them.
REGARD_KERNEL_FN IntVec added_bytes(IntVec sum, IntVec codes, IntVec numbers) {
  return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)numbers);
}
/// Bytes 4 kQuad to 4 kQuad + 3 of each quarter, of a, b, c and d by turns.
template <int kQuad>
REGARD_KERNEL_FN IntVec joined_quads(IntVec a, IntVec b, IntVec c, IntVec d) {
  constexpr __mmask64 kAllBytes = ~0ull;
  constexpr __mmask32 kAllWords = 0xffffffff;
  const auto halves = [](IntVec x, IntVec y) __attribute__((always_inline)) {
    return kQuad < 2 ? _mm512_maskz_unpacklo_epi8(kAllBytes, (__m512i)x, (__m512i)y)
                     : _mm512_maskz_unpackhi_epi8(kAllBytes, (__m512i)x, (__m512i)y);
  };
  const __m512i first = halves(a, b), last = halves(c, d);
  return (IntVec)(kQuad % 2 == 0 ? _mm512_maskz_unpacklo_epi16(kAllWords, first, last)
                                 : _mm512_maskz_unpackhi_epi16(kAllWords, first, last));
}
/// The low words of four vectors as bytes with signs, those of a lane beside one another.
REGARD_KERNEL_FN void bytes_of_words(const IntVec (&words)[4], IntVec* high, IntVec* low) {
  constexpr __mmask32 kAllWords = 0xffffffff, kOddWords = 0xaaaaaaaa;
  constexpr __mmask64 kOddBytes = 0xaaaaaaaaaaaaaaaaull;
  const auto pairs = [](IntVec x, IntVec y) __attribute__((always_inline)) {
    return _mm512_mask_blend_epi16(kOddWords, (__m512i)x, (__m512i)(y << 16));
  };
  const auto rounded = [](__m512i x) __attribute__((always_inline)) {
    return _mm512_maskz_add_epi16(kAllWords, x, _mm512_set1_epi16(128));
  };
  // Bytes 0 and 2 of a lane come from `even`, 1 and 3 from `odd`.
  const __m512i even = pairs(words[0], words[2]), odd = pairs(words[1], words[3]);
  *high = (IntVec)_mm512_mask_blend_epi8(
      kOddBytes, _mm512_maskz_srli_epi16(kAllWords, rounded(even), 8), rounded(odd));
  *low =
      (IntVec)_mm512_mask_blend_epi8(kOddBytes, even, _mm512_maskz_slli_epi16(kAllWords, odd, 8));
}
/// F8Bytes in registers.
struct F8Table {
  __m512i low[2], high[2];
};
REGARD_KERNEL_FN F8Table load_table(const F8Bytes& bytes) {
  return {{_mm512_load_si512(bytes.low), _mm512_load_si512(bytes.low + 64)},
          {_mm512_load_si512(bytes.high), _mm512_load_si512(bytes.high + 64)}};
}
/// Eight codes of the first half, then eight of the second, in each quarter, so that bytes
/// interleaved within quarters are words in their order.
REGARD_KERNEL_FN void write_f8_words(const F8Table& table, const char* p, std::uint16_t* to) {
  constexpr __mmask64 kAllBytes = ~0ull;
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i codes =
      _mm512_maskz_permutexvar_epi64(simd_avx512::kAllOfDoubles, order, _mm512_loadu_si512(p));
  const __m512i low = _mm512_permutex2var_epi8(table.low[0], codes, table.low[1]);
  const __m512i high = _mm512_permutex2var_epi8(table.high[0], codes, table.high[1]) |
                       (codes & _mm512_set1_epi8(-128));
  _mm512_storeu_si512(to, _mm512_maskz_unpacklo_epi8(kAllBytes, low, high));
  _mm512_storeu_si512(to + 32, _mm512_maskz_unpackhi_epi8(kAllBytes, low, high));
}

#else

REGARD_KERNEL_FN IntVec added_words(IntVec sum, IntVec a, IntVec b) {
  return simd_avx512::sum_of_words(sum, a, b);
}
REGARD_KERNEL_FN IntVec added_bytes(IntVec sum, IntVec codes, IntVec numbers) {
  std::uint8_t a[64];
  std::int8_t b[64];
  __builtin_memcpy(a, &codes, sizeof(a));
  __builtin_memcpy(b, &numbers, sizeof(b));
  for (int x = 0; x < 64; ++x) sum[x / 4] += a[x] * b[x];
  return sum;
}
template <int kQuad>
REGARD_KERNEL_FN IntVec joined_quads(IntVec a, IntVec b, IntVec c, IntVec d) {
  std::uint8_t from[4][64], to[64];
  __builtin_memcpy(from[0], &a, sizeof(a));
  __builtin_memcpy(from[1], &b, sizeof(b));
  __builtin_memcpy(from[2], &c, sizeof(c));
  __builtin_memcpy(from[3], &d, sizeof(d));
  for (int x = 0; x < 64; ++x) to[x] = from[x % 4][x / 16 * 16 + 4 * kQuad + x % 16 / 4];
  __builtin_memcpy(&a, to, sizeof(a));
  return a;
}
REGARD_KERNEL_FN void bytes_of_words(const IntVec (&words)[4], IntVec* high, IntVec* low) {
  std::int8_t highs[64], lows[64];
  for (int x = 0; x < 64; ++x) {
    const auto word = static_cast<std::int16_t>(words[x % 4][x / 4]);
    highs[x] = static_cast<std::int8_t>((word + 128) >> 8);
    lows[x] = static_cast<std::int8_t>(word);
  }
  __builtin_memcpy(high, highs, sizeof(highs));
  __builtin_memcpy(low, lows, sizeof(lows));
}
using F8Table = const F8Bytes*;
REGARD_KERNEL_FN F8Table load_table(const F8Bytes& bytes) { return &bytes; }
REGARD_KERNEL_FN void write_f8_words(F8Table table, const char* p, std::uint16_t* to) {
  for (int x = 0; x < 64; ++x) {
    const int code = p[x] & 0x7f;
    to[x] =
        static_cast<std::uint16_t>(table->low[code] | table->high[code] << 8 | (p[x] & 0x80) << 8);
  }
}

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
  REGARD_KERNEL_FN IntVec add_words(IntVec sum, IntVec a, IntVec b) {
    return added_words(sum, a, b);
  }

  REGARD_KERNEL_FN IntVec add_bytes(IntVec sum, IntVec codes, IntVec numbers) {
    return added_bytes(sum, codes, numbers);
  }
  template <int kQuad>
  REGARD_KERNEL_FN IntVec join_quads(IntVec a, IntVec b, IntVec c, IntVec d) {
    return joined_quads<kQuad>(a, b, c, d);
  }
  REGARD_KERNEL_FN void join_bytes(const IntVec (&words)[4], IntVec* high, IntVec* low) {
    bytes_of_words(words, high, low);
  }
  /// The codes in the low halves of 64 bytes, and in the high ones.
  REGARD_KERNEL_FN void codes_of_u4(IntVec bytes, IntVec* low, IntVec* high) {
    constexpr std::int32_t kLow = 0x0f0f0f0f;
    *low = bytes & kLow;
    *high = (bytes >> 4) & kLow;
  }

  static constexpr int kF8Codes = 64;  // that bf16_of_f8 converts
  REGARD_KERNEL_FN F8Table f8_table(bool is_e5m2) {
    return load_table(is_e5m2 ? kF8E5M2Bytes : kF8E4M3Bytes);
  }
  REGARD_KERNEL_FN void bf16_of_f8(const F8Table& table, const char* p, std::uint16_t* to) {
    write_f8_words(table, p, to);
  }
};

}  // namespace regard::simd_avx512_bf16

#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// What every vector vocabulary shares, in the compilers' own portable notation of vectors. Loops
// left to the vectoriser were 4x slower: GCC's -O2 leaves loops of a run-time length scalar.
//
// A vocabulary is a struct with Scalar, Vec, Int, Mask, the block of the product (kRows, kVectors)
// and the functions below and fma; +, -, *, / and comparisons are the compiler's. Algorithms are
// templates over it. Where an instruction set has one instruction for a function below, its
// vocabulary hides this one.

namespace regard::cpu {

// REGARD_UNROLL is for loops of a constant length, REGARD_UNROLL_4 for others, REGARD_NO_UNROLL for
// those that compilers unroll badly.
#if defined(__clang__)
#define REGARD_UNROLL _Pragma("clang loop unroll(full)")
#define REGARD_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#define REGARD_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define REGARD_UNROLL _Pragma("GCC unroll 16")
#define REGARD_UNROLL_4 _Pragma("GCC unroll 4")
#define REGARD_NO_UNROLL _Pragma("GCC unroll 1")
#endif

/// 0, 1, ... as template arguments; the library's own would be shared code.
template <int... kIndex>
struct IndexList {};
template <int kCount, int... kIndex>
struct MakeIndexList : MakeIndexList<kCount - 1, kCount - 1, kIndex...> {};
template <int... kIndex>
struct MakeIndexList<0, kIndex...> {
  using type = IndexList<kIndex...>;
};

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

template <class T, int kBytes>
struct VectorTypes;
template <int kBytes>
struct VectorTypes<float, kBytes> {
  typedef float Vec __attribute__((vector_size(kBytes)));
  typedef std::int32_t Int __attribute__((vector_size(kBytes)));
  typedef std::uint32_t Unsigned __attribute__((vector_size(kBytes)));
  typedef std::uint16_t Half __attribute__((vector_size(kBytes / 2)));
  using IntScalar = std::int32_t;
};
template <int kBytes>
struct VectorTypes<double, kBytes> {
  typedef double Vec __attribute__((vector_size(kBytes)));
  typedef std::int64_t Int __attribute__((vector_size(kBytes)));
  typedef std::uint64_t Unsigned __attribute__((vector_size(kBytes)));
  using Half = void;
  using IntScalar = std::int64_t;
};

template <class T, int kBytes>
struct SimdVector {
  using Scalar = T;
  using Vec = typename VectorTypes<T, kBytes>::Vec;
  using Int = typename VectorTypes<T, kBytes>::Int;
  using Unsigned = typename VectorTypes<T, kBytes>::Unsigned;  // for sums that may wrap
  using Mask = Int;
  using Half = typename VectorTypes<T, kBytes>::Half;
  using IntScalar = typename VectorTypes<T, kBytes>::IntScalar;

  static constexpr int kLanes = kBytes / sizeof(T);

  REGARD_KERNEL_FN Vec load(const T* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  REGARD_KERNEL_FN void store(T* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }
  /// The bytes of a vector at `to`: the first `bytes`, fewer than all, from `from`, then zeros.
  /// What lies behind them is not read.
  REGARD_KERNEL_FN void copy_start(char* to, const char* from, std::int64_t bytes) {
    const Vec zeros{};
    __builtin_memcpy(to, &zeros, sizeof(zeros));
    std::int64_t at = 0;
    const auto copy = [&](auto size) __attribute__((always_inline)) {
      constexpr std::int64_t kSize = decltype(size)::value;
      if ((bytes & kSize) == 0) return;
      __builtin_memcpy(to + at, from + at, kSize);
      at += kSize;
    };
    if constexpr (kBytes > 32) copy(Count<32>{});
    if constexpr (kBytes > 16) copy(Count<16>{});
    if constexpr (kBytes > 8) copy(Count<8>{});
    if constexpr (kBytes > 4) copy(Count<4>{});
    copy(Count<2>{});
    copy(Count<1>{});
  }
  REGARD_KERNEL_FN Vec set(T x) { return x - Vec{}; }
  REGARD_KERNEL_FN Vec select(Mask m, Vec a, Vec b) { return m ? a : b; }
  REGARD_KERNEL_FN Int to_bits(Vec v) { return __builtin_bit_cast(Int, v); }
  REGARD_KERNEL_FN Vec from_bits(Int i) { return __builtin_bit_cast(Vec, i); }
  REGARD_KERNEL_FN Unsigned to_unsigned(Vec v) { return __builtin_bit_cast(Unsigned, v); }
  REGARD_KERNEL_FN Vec from_unsigned(Unsigned u) { return __builtin_bit_cast(Vec, u); }
  /// kLanes bytes as numbers.
  REGARD_KERNEL_FN Vec load_bytes(const char* p) {
    Bytes bytes;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    return __builtin_convertvector(bytes, Vec);
  }
  /// kLanes codes of 4 bits as numbers.
  REGARD_KERNEL_FN Vec load_u4(const char* p) {
    typedef std::uint8_t Pairs __attribute__((vector_size(kLanes / 2)));
    Pairs pairs;
    __builtin_memcpy(&pairs, p, sizeof(pairs));
    const Pairs low = pairs & 15, high = pairs >> 4;
    return __builtin_convertvector(join(low, high, Lanes{}), Vec);
  }
  /// All ones where the sign bit is set, -0 and NaN included.
  REGARD_KERNEL_FN Mask sign(Vec v) { return to_bits(v) < 0; }
  /// 0 where m, v elsewhere.
  REGARD_KERNEL_FN Vec clear(Mask m, Vec v) { return from_bits(~m & to_bits(v)); }
  /// The greater; b where either is NaN.
  REGARD_KERNEL_FN Vec max(Vec a, Vec b) { return a > b ? a : b; }

  // f32 vocabularies only: 16-bit elements, kLanes of them at p, and 32-bit products.

  REGARD_KERNEL_FN Vec load_bf16(const std::uint16_t* p) {
    return from_unsigned(__builtin_convertvector(load_half(p), Unsigned) << 16);
  }
  /// See element.h's from_f16 for the steps.
  REGARD_KERNEL_FN Vec load_f16(const std::uint16_t* p) {
    return from_f16_bits(__builtin_convertvector(load_half(p), Unsigned));
  }
  REGARD_KERNEL_FN Vec from_f16_bits(Unsigned h) {
    const Int magnitude = __builtin_bit_cast(Int, h & 0x7fff);
    const Int is_special = magnitude > 0x7bff;
    const Int normal = ((magnitude << 13) + (112 << 23)) | (is_special & 0x7f800000);
    const Vec denormal = __builtin_convertvector(magnitude, Vec) * 0x1p-24f;
    const Unsigned bits = to_unsigned(from_bits(magnitude < 0x400 ? to_bits(denormal) : normal));
    return from_unsigned(bits | ((h & 0x8000) << 16));
  }
  /// See element.h's from_f8e4m3 for the steps.
  REGARD_KERNEL_FN Vec load_f8e4m3(const std::uint8_t* p) {
    const Unsigned x = load_byte_codes(p);
    const Int magnitude = __builtin_bit_cast(Int, x & 0x7f);
    const Int is_nan = magnitude > 0x7e;
    const Int normal = ((magnitude << 20) + (120 << 23)) | (is_nan & 0x7fc00000);
    const Vec denormal = __builtin_convertvector(magnitude, Vec) * 0x1p-9f;
    const Unsigned bits = to_unsigned(from_bits(magnitude < 8 ? to_bits(denormal) : normal));
    return from_unsigned(bits | ((x & 0x80) << 24));
  }
  /// The upper halves of f16.
  REGARD_KERNEL_FN Vec load_f8e5m2(const std::uint8_t* p) {
    return from_f16_bits(load_byte_codes(p) << 8);
  }
  REGARD_KERNEL_FN void store_bf16(std::uint16_t* p, Vec v) { store_half(p, bf16_words(v) >> 16); }

  /// The same of two vectors, the second behind the first.
  REGARD_KERNEL_FN void store_bf16_pair(std::uint16_t* p, Vec first, Vec second) {
    const auto words = high_words(bf16_words(first), bf16_words(second),
                                  typename MakeIndexList<2 * kLanes>::type{});
    __builtin_memcpy(p, &words, sizeof(words));
  }

  /// The words that store_bf16_pair stores.
  REGARD_KERNEL_FN Vec bf16_pair_words(Vec first, Vec second) {
    std::uint16_t words[2 * kLanes];
    store_bf16_pair(words, first, second);
    Vec made;
    __builtin_memcpy(&made, words, sizeof(made));
    return made;
  }

  /// bf16 of low's lanes in the low halves of words, of high's in the high ones; as store_bf16.
  REGARD_KERNEL_FN Unsigned bf16_pairs(Vec low, Vec high) {
    return (bf16_words(low) >> 16) | (bf16_words(high) & 0xffff0000u);
  }

  /// The halves of x * by, lane by lane.
  REGARD_KERNEL_FN void multiply_wide(Unsigned x, std::uint32_t by, Unsigned* high, Unsigned* low) {
    typedef std::uint64_t Wide __attribute__((vector_size(kBytes)));
    const Wide pairs = __builtin_bit_cast(Wide, x);
    const Wide even = (pairs & 0xffffffffu) * by, odd = (pairs >> 32) * by;
    *low = __builtin_bit_cast(Unsigned, (even & 0xffffffffu) | (odd << 32));
    *high = __builtin_bit_cast(Unsigned, (even >> 32) | (odd & ~Wide{} << 32));
  }

  /// Lane i is the sum of rows[i]'s lanes; rows are used up.
  REGARD_KERNEL_FN Vec sum_rows(Vec (&rows)[kLanes]) {
    REGARD_UNROLL for (int n = kLanes / 2; n > 0; n /= 2) {
      REGARD_UNROLL for (int i = 0; i < n; ++i) {
        rows[i] = interleave(rows[i], rows[i + n], 0, Lanes{}) +
                  interleave(rows[i], rows[i + n], kLanes / 2, Lanes{});
      }
    }
    return rows[0];
  }

  /// rows[i][j] becomes rows[j][i].
  REGARD_KERNEL_FN void transpose(Vec (&rows)[kLanes]) {
    // Interleaving row i with row i + kLanes / 2 rotates the bits of (i, j) by one.
    REGARD_UNROLL for (int stage = 1; stage < kLanes; stage *= 2) {
      Vec next[kLanes];
      REGARD_UNROLL for (int i = 0; i < kLanes / 2; ++i) {
        next[2 * i] = interleave(rows[i], rows[i + kLanes / 2], 0, Lanes{});
        next[2 * i + 1] = interleave(rows[i], rows[i + kLanes / 2], kLanes / 2, Lanes{});
      }
      REGARD_UNROLL for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
    }
  }

 private:
  typedef signed char Bytes __attribute__((vector_size(kLanes)));
  typedef std::uint8_t Codes __attribute__((vector_size(kLanes)));
  using Lanes = typename MakeIndexList<kLanes>::type;

  /// bf16 in the high halves; what stands below is not cleared.
  REGARD_KERNEL_FN Unsigned bf16_words(Vec v) {
    const Unsigned bits = to_unsigned(v);
    return v != v ? bits | 0x400000u : bits + 0x7fff + ((bits >> 16) & 1);
  }
  /// The high halves of a, then of b.
  template <int... kIndex>
  REGARD_KERNEL_FN auto high_words(Unsigned a, Unsigned b, IndexList<kIndex...>) {
    typedef std::uint16_t Words __attribute__((vector_size(kBytes)));
    return __builtin_shufflevector(__builtin_bit_cast(Words, a), __builtin_bit_cast(Words, b),
                                   (2 * kIndex + 1)...);
  }
  /// low[0], high[0], low[1], ...
  template <class Pairs, int... kIndex>
  REGARD_KERNEL_FN Codes join(Pairs low, Pairs high, IndexList<kIndex...>) {
    return __builtin_shufflevector(low, high, (kIndex / 2 + kIndex % 2 * (kLanes / 2))...);
  }
  REGARD_KERNEL_FN Unsigned load_byte_codes(const std::uint8_t* p) {
    Codes codes;
    __builtin_memcpy(&codes, p, sizeof(codes));
    return __builtin_convertvector(codes, Unsigned);
  }
  REGARD_KERNEL_FN auto load_half(const std::uint16_t* p) {
    Half h;
    __builtin_memcpy(&h, p, sizeof(h));
    return h;
  }
  REGARD_KERNEL_FN void store_half(std::uint16_t* p, Unsigned bits) {
    const Half h = __builtin_convertvector(bits, Half);
    __builtin_memcpy(p, &h, sizeof(h));
  }
  /// a[from], b[from], a[from + 1], b[from + 1], ...
  template <int... kIndex>
  REGARD_KERNEL_FN Vec interleave(Vec a, Vec b, int from, IndexList<kIndex...>) {
    return from == 0
               ? __builtin_shufflevector(a, b, (kIndex / 2 + kIndex % 2 * kLanes)...)
               : __builtin_shufflevector(a, b, (kIndex / 2 + kIndex % 2 * kLanes + kLanes / 2)...);
  }
};

}  // namespace regard::cpu

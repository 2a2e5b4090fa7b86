#pragma once

#include "cpu/simd/simd_neon.h"

// Advanced SIMD with the dot product of bf16 pairs (BFDOT, BFCVT).

namespace regard::simd_neon_bf16 {

template <class T>
struct Simd : simd_neon::Simd<T> {
  using Base = simd_neon::Simd<T>;
  using Vec = typename Base::Vec;
  using Int = typename Base::Int;

  /// sum + a.low * b.low + a.high * b.high, products of bf16 in each 32-bit lane.
  REGARD_KERNEL_FN Vec dot(Vec sum, Int a, Int b) {
    return (Vec)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
  }
  /// bf16 of low's lanes, then of high's; to nearest even.
  REGARD_KERNEL_FN Int rounded(Vec low, Vec high) {
    const bfloat16x8_t first = vcvtq_low_bf16_f32((float32x4_t)low);
    return (Int)vcvtq_high_bf16_f32(first, (float32x4_t)high);
  }
  /// The low and the high half of the words, each to an address.
  REGARD_KERNEL_FN void store_rounded(Int words, std::uint16_t* low, std::uint16_t* high) {
    vst1_u16(low, vget_low_u16((uint16x8_t)words));
    vst1_u16(high, vget_high_u16((uint16x8_t)words));
  }
  /// Word i of the low half, then word i of the high half.
  REGARD_KERNEL_FN Int paired(Int words) {
    const uint16x8_t all = (uint16x8_t)words;
    return (Int)vzip1q_u16(all, vextq_u16(all, all, 4));
  }
  /// Words of a in the low halves, of b in the high ones.
  REGARD_KERNEL_FN void pair_words(Int a, Int b, Int* to) {
    to[0] = (Int)vzip1q_u16((uint16x8_t)a, (uint16x8_t)b);
    to[1] = (Int)vzip2q_u16((uint16x8_t)a, (uint16x8_t)b);
  }
  REGARD_KERNEL_FN Int to_pairs(Vec low, Vec high) { return paired(rounded(low, high)); }
};

}  // namespace regard::simd_neon_bf16

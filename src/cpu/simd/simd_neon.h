#pragma once

#include <arm_neon.h>

#include "cpu/simd/simd_vector.h"

// The vector vocabulary of AArch64's Advanced SIMD: 16-byte vectors, 32 registers, fused
// multiply-add. Written without such a machine at hand: correct under qemu, its speed unmeasured.

namespace regard::simd_neon {

REGARD_KERNEL_FN float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c) {
  return vfmaq_f32(c, a, b);
}
REGARD_KERNEL_FN float64x2_t fused(float64x2_t a, float64x2_t b, float64x2_t c) {
  return vfmaq_f64(c, a, b);
}

REGARD_KERNEL_FN float32x4_t roots(float32x4_t x) { return vsqrtq_f32(x); }
REGARD_KERNEL_FN float64x2_t roots(float64x2_t x) { return vsqrtq_f64(x); }

/// As many codes of 4 bits as a vector of T has lanes: the first stands lowest.
REGARD_KERNEL_FN float32x4_t read_u4(const char* p, float) {
  std::uint16_t codes;
  __builtin_memcpy(&codes, p, sizeof(codes));
  const int32x4_t right = {0, -4, -8, -12};
  return vcvtq_f32_u32(vandq_u32(vshlq_u32(vdupq_n_u32(codes), right), vdupq_n_u32(15)));
}
REGARD_KERNEL_FN float64x2_t read_u4(const char* p, double) {
  const int64x2_t right = {0, -4};
  const uint64x2_t codes = vdupq_n_u64(static_cast<std::uint8_t>(*p));
  return vcvtq_f64_u64(vandq_u64(vshlq_u64(codes, right), vdupq_n_u64(15)));
}

template <class T>
struct Simd : cpu::SimdVector<T, 16> {
  using Base = cpu::SimdVector<T, 16>;
  using Vec = typename Base::Vec;
  // 8 x 3 accumulators, 3 columns and a broadcast of 32 registers.
  static constexpr int kRows = 8;
  static constexpr int kVectors = 3;
  static constexpr int kWidth = kVectors * Base::kLanes;  // rows of a row block

  /// a * b + c, rounded once.
  REGARD_KERNEL_FN Vec fma(Vec a, Vec b, Vec c) { return fused(a, b, c); }
  REGARD_KERNEL_FN Vec sqrt(Vec x) { return roots(x); }

  REGARD_KERNEL_FN Vec sum_rows(Vec (&rows)[Base::kLanes]) {
    if constexpr (Base::kLanes == 2) {
      return vpaddq_f64(rows[0], rows[1]);
    } else {
      return vpaddq_f32(vpaddq_f32(rows[0], rows[1]), vpaddq_f32(rows[2], rows[3]));
    }
  }

  /// The portable form takes vectors of 2 and 4 bytes apart, which NEON does not have.
  REGARD_KERNEL_FN Vec load_u4(const char* p) { return (Vec)read_u4(p, T()); }

  /// NEON has no 64-bit product of lanes, which the portable form would take apart.
  REGARD_KERNEL_FN void multiply_wide(typename Base::Unsigned x, std::uint32_t by,
                                      typename Base::Unsigned* high, typename Base::Unsigned* low) {
    const uint32x4_t words = (uint32x4_t)x;
    const uint32x4_t first = (uint32x4_t)vmull_n_u32(vget_low_u32(words), by);
    const uint32x4_t last = (uint32x4_t)vmull_n_u32(vget_high_u32(words), by);
    *low = (typename Base::Unsigned)vuzp1q_u32(first, last);
    *high = (typename Base::Unsigned)vuzp2q_u32(first, last);
  }

  REGARD_KERNEL_FN Vec load_f16(const std::uint16_t* p) {
    return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
  }
  REGARD_KERNEL_FN void store_f16(std::uint16_t* p, Vec v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
  }
};

}  // namespace regard::simd_neon

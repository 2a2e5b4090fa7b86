#pragma once

#include "cpu/problem.h"
#include "cpu/simd/simd_vector.h"

// The vector vocabulary of the baseline: 16-byte vectors (SSE2, NEON, or scalars where there are
// none), and no fused multiply-add.

namespace regard::simd_scalar {

template <class T>
struct Simd : cpu::SimdVector<T, 16> {
  using Base = cpu::SimdVector<T, 16>;
  using Vec = typename Base::Vec;
  // 4 x 2 accumulators, 2 columns and a broadcast fit 16 registers: 6 x 2 measured no better.
  static constexpr int kRows = 4;
  static constexpr int kVectors = 2;
  static constexpr int kWidth = kVectors * Base::kLanes;  // rows of a row block

  /// a * b + c; rounded twice here.
  REGARD_KERNEL_FN Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }

  REGARD_KERNEL_FN void store_f16(std::uint16_t* p, Vec v) {
    for (int lane = 0; lane < Base::kLanes; ++lane) p[lane] = cpu::to_f16(v[lane]);
  }
};

}  // namespace regard::simd_scalar

#pragma once

#include <cstdint>

#include "cuda/swizzle.cuh"

// Scales of K's columns, which lie along a product's terms: queries are multiplied by them. A
// product takes 16 bits, and scores need those of f32, so the result is three numbers of bf16.

namespace regard::cuda_flash {

using cuda::Element;

/// cuda::widen() in one instruction, not in a hundred. Where widen() itself was that, a backward at
/// 256 dims spilled a word more in each tile.
template <Element kType>
REGARD_DEVICE_FN float widen_query(std::uint16_t x) {
#if defined(__CUDA_ARCH__)
  if constexpr (kType == Element::kF16) {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(x));
    return number;
  }
#endif
  return cuda::widen<kType>(x);
}

/// A warp's 16 queries as left operands: load(queries, block, step, to) loads columns [16 step,
/// 16 step + 16), kParts operands of kType that are added.
template <Element kQueries, int kDims, class Shared>
struct PlainQueries {
  static constexpr Element kType = kQueries;
  static constexpr int kParts = 1;
  Shared rows;
  int at;  // left_at() of the first row

  template <class Block>
  REGARD_DEVICE_FN void load(const PlainQueries& queries, const Block& block, int step,
                             std::uint32_t (&to)[kParts][4]) {
    cuda::load_step<kDims>(block, queries.rows, queries.at, 0, step, to[0]);
  }
};

/// The same, times `scales` of their columns.
template <Element kQueries, int kDims, class Shared, class Scales>
struct ScaledQueries {
  static constexpr Element kType = Element::kBf16;
  static constexpr int kParts = 3;
  Shared rows;
  int at;
  Scales scales;

  template <class Block>
  REGARD_DEVICE_FN void load(const ScaledQueries& queries, const Block& block, int step,
                             std::uint32_t (&to)[kParts][4]) {
    std::uint32_t own[4];
    cuda::load_step<kDims>(block, queries.rows, queries.at, 0, step, own);
    REGARD_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) {
      const int column = step * 16 + x / 2 * 8 + cuda::lane_column(block);
      const auto low_bits = static_cast<std::uint16_t>(own[x]);
      const auto high_bits = static_cast<std::uint16_t>(own[x] >> 16);
      float low = widen_query<kQueries>(low_bits) * queries.scales[column];
      float high = widen_query<kQueries>(high_bits) * queries.scales[column + 1];
      REGARD_DEVICE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const std::uint32_t word = cuda::pack<kType>(low, high);
        to[part][x] = word;
        low -= problem::f32_of(word << 16);
        high -= problem::f32_of(word & 0xffff0000u);
      }
    }
  }
};

/// sums = queries right^T of columns [16 first, 16 first + 32), where `right` has kKeys rows. With
/// kOfRows the product with ones, a sum of a query's columns, goes to row_sums.
template <int kDims, bool kOfRows, int kKeys, class Block, class Queries, class Shared>
REGARD_DEVICE_FN void multiply_two_steps(const Block& block, const Queries& queries, Shared right,
                                         int at_right, int first, cuda::WarpSums<kKeys>* sums,
                                         float (&row_sums)[4]) {
  constexpr Element kType = Queries::kType;
  constexpr std::uint32_t kOnes = kType == Element::kBf16 ? 0x3f803f80u : 0x3c003c00u;
  cuda::clear(sums);
  REGARD_DEVICE_UNROLL
  for (int k = first; k < first + 2; ++k) {
    std::uint32_t a[Queries::kParts][4];
    Queries::load(queries, block, k, a);
    REGARD_DEVICE_UNROLL
    for (int part = 0; kOfRows && part < Queries::kParts; ++part) {
      block.template multiply_add<kType>(a[part], {kOnes, kOnes}, row_sums);
    }
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 16; ++n) {
      std::uint32_t b[4];
      cuda::load_step<kDims>(block, right, at_right, n, k, b);
      REGARD_DEVICE_UNROLL
      for (int part = 0; part < Queries::kParts; ++part) {
        block.template multiply_add<kType>(a[part], {b[0], b[1]}, sums->at[2 * n]);
        block.template multiply_add<kType>(a[part], {b[2], b[3]}, sums->at[2 * n + 1]);
      }
    }
  }
}

/// scores = queries right^T of kDims columns.
template <int kDims, int kKeys, class Block, class Queries, class Shared>
REGARD_DEVICE_FN void multiply_queries(const Block& block, const Queries& queries, Shared right,
                                       cuda::WarpSums<kKeys>* scores) {
  const int at_right = cuda::right_at<kDims>(block);
  cuda::clear(scores);
  REGARD_DEVICE_UNROLL
  for (int k = 0; k < kDims / 16; k += 2) {
    cuda::WarpSums<kKeys> group;
    float no_sums[4];
    multiply_two_steps<kDims, false>(block, queries, right, at_right, k, &group, no_sums);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) scores->at[n][x] += group.at[n][x];
    }
  }
}

}  // namespace regard::cuda_flash

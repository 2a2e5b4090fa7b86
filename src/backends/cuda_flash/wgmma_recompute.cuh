#pragma once

#include <cstdint>

#include "backends/cuda_flash/tile.cuh"

// A row of output without tensor cores, in f32 and from global memory: what rows of a warp are
// computed by whose values may be infinities or NaN behind a mask. Takes a hundred times as long.

namespace regard::cuda_flash {

template <class Block>
REGARD_DEVICE_FN bool any_lane(const Block& block, bool value) {
  int any = value ? 1 : 0;
  REGARD_DEVICE_UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) any |= block.shuffle_xor(any, lanes);
  return any != 0;
}

struct RowPlace {
  std::int64_t b, head, query;
};

/// A lane's share of a row of a tensor; columns that it lacks are 0.
template <Element kType, int kOwnColumns>
REGARD_DEVICE_FN void load_columns(const char* row, int first, std::int64_t columns,
                                   float (&to)[kOwnColumns]) {
  REGARD_DEVICE_UNROLL
  for (int c = 0; c < kOwnColumns; ++c) {
    const bool exists = first + c < columns;
    to[c] = exists ? cuda::widen<kType>(reinterpret_cast<const std::uint16_t*>(row)[first + c]) : 0;
  }
}

/// Writes the output of a row that sees `keys`. All lanes of a warp call it; each has neighbouring
/// columns.
template <Element kType, int kDims, class Block>
REGARD_DEVICE_FN void recompute_row(const Block& block, const Problem& p, float factor,
                                    const RowPlace& row, const semantics::KeyRange& keys) {
  constexpr int kOwn = kDims / kWarp;
  const int first = block.thread() % kWarp * kOwn;
  const std::int64_t head_kv = row.head / p.group_size;
  float query[kOwn], out[kOwn];
  load_columns<kType>(problem::row_address(p.q, row.b, row.head, row.query), first, p.head_dim_qk,
                      query);
  REGARD_DEVICE_UNROLL
  for (int c = 0; c < kOwn; ++c) out[c] = 0.0f;
  float max = cuda::minus_infinity<float>(), sum = 0.0f;
  REGARD_DEVICE_NO_UNROLL
  for (std::int64_t j = keys.lo; j < keys.hi; ++j) {
    float other[kOwn], score = 0.0f;
    load_columns<kType>(problem::row_address(p.k, row.b, head_kv, j), first, p.head_dim_qk, other);
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) score = __builtin_fmaf(query[c], other[c], score);
    REGARD_DEVICE_UNROLL
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) score += block.shuffle_xor(score, lanes);
    const float before = max;
    max = __builtin_fmaxf(score, max);  // NaN is passed over here and reaches the sum
    const float subtrahend = cuda::subtrahend(max);
    const float rescale = cuda::exp2_flushed((before - subtrahend) * factor);
    const float prob = cuda::exp2_flushed((score - subtrahend) * factor);
    sum = __builtin_fmaf(sum, rescale, prob);
    load_columns<kType>(problem::row_address(p.v, row.b, head_kv, j), first, p.head_dim_v, other);
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) out[c] = __builtin_fmaf(out[c], rescale, prob * other[c]);
  }
  const float share = cuda::inverse_sum(p, sum);
  char* const to = problem::row_address(p.out, row.b, row.head, row.query);
  REGARD_DEVICE_UNROLL
  for (int c = 0; c < kOwn; c += 2) {
    cuda::store_pair<kType>(p.out.type, to, first + c, p.head_dim_v, out[c] * share,
                            out[c + 1] * share);
  }
}

}  // namespace regard::cuda_flash

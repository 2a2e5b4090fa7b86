#include "core/measure/mean_sequence.h"

#include <algorithm>

#include "base/checked.h"
#include "regard/dtype.h"
#include "semantics/row_bounds.h"

namespace regard {
namespace {

MeanSide side_of(const AttentionParams& p, std::int64_t extent, std::int64_t tokens) noexcept {
  MeanSide side;
  const double batch = static_cast<double>(p.batch);
  side.extent = extent;
  side.positions = batch * static_cast<double>(extent);
  side.rows = tokens > 0 ? std::min(static_cast<double>(tokens), side.positions) : side.positions;
  side.length = p.batch == 0 ? 0 : static_cast<std::int64_t>(side.rows / batch + 0.5);
  return side;
}

semantics::Band band_of(const AttentionParams& p, std::int64_t len_q,
                        std::int64_t len_kv) noexcept {
  semantics::Band band;
  band.window_left = p.window_left;
  band.window_right = p.window_right;
  band.len_kv = len_kv;
  if (p.diagonal == Diagonal::kBottomRight) {
    band.shift = semantics::bottom_right_shift(len_q, len_kv);
  }
  return band;
}

bool has_window(const AttentionParams& p) noexcept {
  return p.window_left >= 0 || p.window_right >= 0;
}

}  // namespace

MeanSide mean_queries(const AttentionParams& p) noexcept {
  const bool is_packed = p.features.has(Feature::kPacked);
  return side_of(p, p.seqlen_q, is_packed ? p.total_q : p.tokens_q);
}

MeanSide mean_keys(const AttentionParams& p) noexcept {
  const bool is_packed = p.features.has(Feature::kPacked) && !p.features.has(Feature::kPaged);
  return side_of(p, p.seqlen_kv, is_packed ? p.total_kv : p.tokens_kv);
}

/// visible_keys() is piecewise linear, so the mean over some queries in equal steps is that over
/// all.
double visible_pairs(const AttentionParams& p, std::int64_t len_q, std::int64_t len_kv) noexcept {
  const double rows = static_cast<double>(len_q);
  if (!has_window(p)) return rows * static_cast<double>(len_kv);
  const semantics::Band band = band_of(p, len_q, len_kv);
  constexpr std::int64_t kSamples = 64;
  const std::int64_t samples = std::min(len_q, kSamples);
  double visible = 0.0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double at = (static_cast<double>(i) + 0.5) * rows / static_cast<double>(samples);
    const semantics::KeyRange keys = semantics::visible_keys(band, static_cast<std::int64_t>(at));
    if (!is_empty(keys)) visible += static_cast<double>(keys.hi - keys.lo);
  }
  return samples == 0 ? 0.0 : visible / static_cast<double>(samples) * rows;
}

double visible_keys_of(const AttentionParams& p, std::int64_t len_q, std::int64_t len_kv) noexcept {
  if (!has_window(p)) return static_cast<double>(len_kv);
  const semantics::KeyRange keys =
      semantics::visible_keys(band_of(p, len_q, len_kv), 0, std::max<std::int64_t>(len_q, 1));
  return is_empty(keys) ? 0.0 : static_cast<double>(keys.hi - keys.lo);
}

TokenBytes token_bytes(const AttentionParams& p) noexcept {
  const bool has_row_scales = p.features.has(Feature::kScalesPerToken);
  const ScaleBlock block = block_of(scale_layout_of(p.features));
  const auto bytes = [&](std::int64_t heads, std::int64_t width, Dtype dtype) {
    // Floats: a scale and a minimum for each group of u4, else a scale.
    const std::int64_t groups = ceil_div(width, kGroupSize);
    const std::int64_t floats = dtype == Dtype::kU4 ? 2 * groups
                                : is_quantised(dtype) && block.columns != 0
                                    ? ceil_div(ceil_div(width, block.columns), block.rows)
                                : has_row_scales && is_quantised(dtype) ? 1
                                                                        : 0;
    return static_cast<double>(heads) *
           static_cast<double>(bytes_of(dtype, width) + floats * size_of(Dtype::kF32));
  };
  return {bytes(p.num_heads_q, p.head_dim_qk, p.dtype_q),
          bytes(p.num_heads_kv, p.head_dim_qk, p.dtype_k) +
              bytes(p.num_heads_kv, p.head_dim_v, p.dtype_v),
          bytes(p.num_heads_q, p.head_dim_v, p.dtype_out)};
}

}  // namespace regard

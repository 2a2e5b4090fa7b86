#include "cpu/task_sizes.h"

#include <algorithm>

#include "base/checked.h"
#include "cpu/split.h"
#include "cpu/threads/run_tasks.h"
#include "regard/dtype.h"

namespace regard::cpu {

std::int64_t choose_heads(const AttentionParams& params, std::int64_t splits,
                          std::int32_t workers) noexcept {
  constexpr std::int64_t kMaxHeads = 8;
  // The heads of small pages are neighbours in either order. One head at a time is 1.1 to 1.4 times
  // as fast where its rows of a page fill a page of memory.
  const std::int64_t row_bytes = params.head_dim_qk * size_of(params.dtype_k);
  const bool apart = params.layout_k == Layout::kBhsd &&
                     (!params.features.has(Feature::kPaged) ||
                      saturating_mul(params.page_size, row_bytes) >= kMemoryPage);
  std::int64_t heads = apart ? 1 : std::min(params.num_heads_kv, kMaxHeads);
  const auto tasks = [&] {
    return saturating_mul(params.batch,
                          saturating_mul(ceil_div(params.num_heads_kv, heads), splits));
  };
  while (heads > 1 && tasks() < 4 * std::int64_t{workers}) heads /= 2;
  return std::max<std::int64_t>(heads, 1);
}

std::int64_t even_block_rows(const AttentionParams& params, const TiledKernel& kernel,
                             std::int64_t max_row_blocks, std::int64_t splits,
                             std::int32_t workers) noexcept {
  std::int64_t row_blocks = max_row_blocks;
  while (row_blocks > 1 &&
         count_tasks(params, row_blocks * kernel.width) * splits < 3 * std::int64_t{workers}) {
    row_blocks /= 2;
  }
  const std::int64_t rows = rows_per_head(params);
  const std::int64_t blocks = ceil_div(rows, row_blocks * kernel.width);
  return ceil_div(ceil_div(rows, blocks), kernel.lanes) * kernel.lanes;
}

std::int64_t window_keys(const AttentionParams& params, std::int64_t rows,
                         bool in_blocks) noexcept {
  constexpr std::int64_t kBlock = 8;
  const bool has_heads = params.num_heads_q > 0 && params.num_heads_kv > 0;
  const std::int64_t group = has_heads ? params.num_heads_q / params.num_heads_kv : 1;
  const std::int64_t apart = (rows + group - 2) / group;  // the first and the last query, at most
  const std::int64_t keys = apart + params.window_left + params.window_right + kBlock;
  // Whole blocks, of which as many keys as one less than a block may lie on either side.
  return std::min(in_blocks ? (keys + kBlock - 1) / kBlock * kBlock : keys, params.seqlen_kv);
}

bool has_narrow_window(const AttentionParams& params, const TiledKernel& kernel) noexcept {
  constexpr std::int64_t kNarrow = 256;
  const std::int64_t left = params.window_left, right = params.window_right;
  const bool is_narrow =
      left >= 0 && right >= 0 && left < kNarrow && right < kNarrow && left + right < kNarrow;
  // A callback has the bits of the function that computes the same.
  const bool has_functions = params.features.has(Feature::kScoreFunction) ||
                             params.features.has(Feature::kScoreCallback) ||
                             params.features.has(Feature::kMaskFunction);
  return is_narrow && kernel.adds_rows && !has_functions;
}

std::int64_t decode_tile_kv(const AttentionParams& params, const TiledKernel& kernel,
                            std::int64_t tile_kv) noexcept {
  // AVX-512 without pairs has tiles of two lines. Of 8-bit floats, too, which become f16 there:
  // more would fill an L1 of 48 KB with copies.
  const std::int64_t column_bytes = kernel.has_f16_of_f8 ? 128 : 64;
  const auto element_bytes = [&](Dtype dtype) -> std::int64_t {
    return is_f8(dtype) && kernel.has_f16_of_f8 ? 2 : size_of(dtype);
  };
  return decode_tile_kv(std::max(element_bytes(params.dtype_k), element_bytes(params.dtype_v)),
                        std::max(params.head_dim_qk, params.head_dim_v), tile_kv, column_bytes);
}

bool touches_pages(std::int64_t l1d_bytes) noexcept {
  // In decode a Zen 4, of 32 KB, gains 1.02 to 1.25, and a Zen 5, of 48 KB, loses 1.03 to 1.3; with
  // short sequences it loses 1.01 to 1.04.
  return l1d_bytes <= 32 << 10;
}

bool streams_out(const AttentionParams& params, std::int64_t l3_bytes) noexcept {
  // On a Zen 5 16 to 32 keys gain 1.08 to 1.4 in f32, 1.12 to 1.2 in bf16, 48 1.01; 64 lose up to
  // 0.07 in [B,S,H,D], as their products are long enough to hide the reads.
  constexpr std::int64_t kFewKeys = 48;
  const bool packed = params.features.has(Feature::kPacked);
  const auto rows = [&](std::int64_t total, std::int64_t seqlen, std::int64_t heads) {
    return saturating_mul(packed ? total : saturating_mul(params.batch, seqlen), heads);
  };
  const std::int64_t q = rows(params.total_q, params.seqlen_q, params.num_heads_q),
                     kv = rows(params.total_kv, params.seqlen_kv, params.num_heads_kv);
  const auto bytes = [](std::int64_t of_rows, Dtype dtype, std::int64_t dim) {
    return saturating_mul(of_rows, bytes_of(dtype, dim));
  };
  const std::int64_t in_q = saturating_add(bytes(q, params.dtype_q, params.head_dim_qk),
                                           bytes(q, params.dtype_out, params.head_dim_v)),
                     in_kv = saturating_add(bytes(kv, params.dtype_k, params.head_dim_qk),
                                            bytes(kv, params.dtype_v, params.head_dim_v));
  return params.seqlen_kv <= kFewKeys && l3_bytes > 0 && saturating_add(in_q, in_kv) > l3_bytes;
}

}  // namespace regard::cpu

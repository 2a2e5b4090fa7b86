#pragma once

#include <cstdint>

#include "base/checked.h"
#include "cuda/forward_args.h"
#include "regard/params.h"
#include "semantics/splits.h"

namespace regard::cuda {

/// The workspace of a forward whose keys come in splits; 0 bytes where they do not.
struct SplitsLayout {
  std::int64_t row_max = 1;   // splits of a sequence
  std::int64_t at_stats = 0;  // floats
  std::int64_t bytes = 0;
};

inline SplitsLayout splits_layout(const AttentionParams& p) {
  const std::int64_t group_size = p.num_heads_kv == 0 ? 0 : p.num_heads_q / p.num_heads_kv;
  const std::int64_t rows = saturating_mul(p.seqlen_q, group_size);
  const std::int64_t row_max = semantics::split_count(p.seqlen_kv);
  if (rows == 0 || rows > kSplitRows || row_max == 1) return {};
  const std::int64_t heads = saturating_mul(p.batch, p.num_heads_kv);
  const std::int64_t all = saturating_mul(saturating_mul(heads, row_max), rows);
  const std::int64_t at_stats = saturating_mul(all, p.head_dim_v);
  const std::int64_t floats = saturating_add(at_stats, saturating_mul(all, 2));
  return {row_max, at_stats, round_up(saturating_mul(floats, sizeof(float)), 64)};
}

inline Splits splits_of(const AttentionParams& p, void* workspace) {
  const SplitsLayout layout = splits_layout(p);
  if (layout.row_max == 1) return {};
  auto* const floats = static_cast<float*>(workspace);
  return {layout.row_max, floats, floats + layout.at_stats};
}

}  // namespace regard::cuda

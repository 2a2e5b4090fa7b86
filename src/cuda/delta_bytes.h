#pragma once

#include <cstdint>

#include "base/checked.h"
#include "regard/params.h"

namespace regard::cuda {

/// Rows of all heads, as dense_row() counts them.
inline std::int64_t delta_rows(const AttentionParams& p) {
  const std::int64_t positions =
      p.features.has(Feature::kPacked) ? p.total_q : saturating_mul(p.batch, p.seqlen_q);
  return saturating_mul(positions, p.num_heads_q);
}

/// The workspace of a backward: a number for each row.
inline std::int64_t delta_bytes(const AttentionParams& p) {
  return round_up(saturating_mul(delta_rows(p), sizeof(float)), 64);
}

}  // namespace regard::cuda

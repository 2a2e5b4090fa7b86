#pragma once

#include <cstdint>

#include "base/checked.h"
#include "regard/params.h"

namespace regard::cuda {

/// The workspace of a backward: a number for each row.
inline std::int64_t delta_bytes(const AttentionParams& p) {
  const std::int64_t positions =
      p.features.has(Feature::kPacked) ? p.total_q : saturating_mul(p.batch, p.seqlen_q);
  const std::int64_t rows = saturating_mul(positions, p.num_heads_q);
  return round_up(saturating_mul(rows, sizeof(float)), 64);
}

}  // namespace regard::cuda

#pragma once

#include <cstdint>

#include "base/checked.h"
#include "regard/params.h"

namespace regard::cuda {

/// The workspace of a backward: a number for each row.
inline std::int64_t delta_bytes(const AttentionParams& p) {
  const std::int64_t rows = saturating_mul(saturating_mul(p.batch, p.num_heads_q), p.seqlen_q);
  return round_up(saturating_mul(rows, sizeof(float)), 64);
}

}  // namespace regard::cuda

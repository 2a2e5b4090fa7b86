#pragma once

#include <cstdint>

#include "problem/problem.h"

// Which row of the tables of angles belongs to a row of q or k_new: docs/semantics.md.

namespace regard::problem {

/// The position of row i of a sequence's new keys: rows before its first key count, as in
/// flash_attn_with_kvcache.
REGARD_KERNEL_FN std::int64_t key_position(const Problem& p, const Sequence& s, std::int64_t i) {
  if (p.positions.present) {
    return *element_at<std::int32_t>(p.positions, row_index(p.positions, s.b, 0, i));
  }
  return s.leftpad + s.band.len_kv - p.seqlen_new + i;
}

/// The position of a sequence's query i. Without a causal mask or a window all of them stand at the
/// first new key, as in flash_attn_with_kvcache.
REGARD_KERNEL_FN std::int64_t query_position(const Problem& p, const Sequence& s, std::int64_t i) {
  const bool ascends = p.positions.present || p.window_left >= 0 || p.window_right >= 0;
  return key_position(p, s, ascends ? i : 0);
}

}  // namespace regard::problem

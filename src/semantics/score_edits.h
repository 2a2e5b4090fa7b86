#pragma once

#include <cstdint>

#include "semantics/row_bounds.h"

// Edits in their order: softmax_scale -> softcap -> + ALiBi, + bias -> mask. A masked score is
// -inf by selection, never by addition, so that NaN behind a mask cannot matter.

namespace regard::semantics {

/// softcap * tanh(score / softcap); `tanh` is the caller's, over scalars or vectors.
template <class T, class Tanh>
REGARD_KERNEL_FN constexpr T softcap_score(T score, T softcap, Tanh tanh) {
  return softcap * tanh(score / softcap);
}

/// How far key j lies from the row's position on the diagonal, saturating.
REGARD_KERNEL_FN constexpr std::int64_t diagonal_distance(std::int64_t position, std::int64_t j) {
  const std::int64_t difference = saturating_add(position, -j);
  if (difference == kMinPosition) return kMaxPosition;
  return difference < 0 ? -difference : difference;
}

/// What ALiBi adds to a score.
template <class T>
REGARD_KERNEL_FN constexpr T alibi_bias(T slope, std::int64_t position, std::int64_t j) {
  return -slope * static_cast<T>(diagonal_distance(position, j));
}

/// The key and value head that query head h reads.
REGARD_KERNEL_FN constexpr std::int64_t kv_head(std::int64_t h, std::int64_t group_size) {
  return h / group_size;
}

}  // namespace regard::semantics

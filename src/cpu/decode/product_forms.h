#pragma once

#include <cstdint>

#include "cpu/problem.h"

// Which numbers decode rows of bf16 are multiplied as, by the type of K or V: pairs of bf16, words
// of 16 bits, bytes; floats otherwise. A unit has some of these forms.

namespace regard::cpu {

/// Of K's that are or become bf16: q's own numbers are multiplied, and what q and K have as
/// descales belongs to the sums.
REGARD_KERNEL_FN bool multiplies_pairs(const Problem& p, Element type) {
  const bool is_bf16 = type == Element::kBf16 || is_8_bit_float(type);
  const bool has_blocks = p.scales_k.present && p.scale_columns != 0;
  return p.q.type == Element::kBf16 && is_bf16 && !has_blocks && !p.scales_q.present &&
         !p.channel_scales_k.present;
}

/// Whether probabilities of a call with such K and V are rounded to bf16, of which the tile's V
/// are now `copies`: where claims say so (problem/claims.cc), of K and V of one type.
REGARD_KERNEL_FN bool rounds_f8_probs(const Problem& p, Element keys, Element values,
                                      Element copies) {
  return p.q.type == Element::kBf16 && keys == values && is_8_bit_float(values) &&
         copies == Element::kBf16;
}

REGARD_KERNEL_FN bool multiplies_words(const Problem& p, Element type) {
  return p.q.type == Element::kBf16 && type == Element::kI8;
}
/// Statistics are exact to f32.
REGARD_KERNEL_FN bool dots_words(const Problem& p, Element type) {
  return multiplies_words(p, type) && !p.lse.present && !p.stats.present;
}

/// u4, where a vector of codes is whole groups of one row.
REGARD_KERNEL_FN bool multiplies_groups(const Problem& p, Element type, std::int64_t dim) {
  constexpr std::int64_t kColumns = 128;
  return p.q.type == Element::kBf16 && type == Element::kU4 && dim % kColumns == 0;
}
REGARD_KERNEL_FN bool dots_groups(const Problem& p, Element type) {
  return multiplies_groups(p, type, p.head_dim_qk) && !p.lse.present && !p.stats.present;
}

}  // namespace regard::cpu

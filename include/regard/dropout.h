#pragma once

#include "regard/export.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensor.h"

namespace regard {

/// Writes the dropout mask of a problem, for tests and for other implementations of the same
/// training run: kept[b,h,i,j] is true where the probability of query i and key j is kept (and
/// scaled), and true everywhere without dropout. It is the same on every backend and for any number
/// of threads (docs/semantics.md states how it is drawn), and does not depend on what else hides a
/// key. Queries and keys past their sequence's lengths are false.
///
/// Of `buffers` it reads seqlens_q, seqlens_kv, diagonal_offsets, diagonal_offset, rng_seed and
/// rng_offset; q, k and v are not needed. `kept`: bool or u8 [B,Hq,Sq,Skv], any strides.
REGARD_EXPORT Status dropout_mask(const AttentionParams& params, const Buffers& buffers,
                                  const TensorView& kept);

}  // namespace regard

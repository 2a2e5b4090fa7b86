#pragma once

#include "regard/case.h"
#include "regard/request.h"

namespace regard::conformance {

/// Writes the values of every input of `request`, whose views have memory, and the scalars that a
/// case draws (seeds, offsets). Values of the case's data kind; poison comes last. Not written:
/// `out`, the statistics and `delta`, which a backward reads and a forward writes.
void fill_inputs(const Case& c, AttentionGradRequest* request);

/// Captured tensors, whose real numbers are about 1 and whose integers are small.
void fill_captured(const Case& c, AttentionGradRequest* request);

/// What mask_function is in each block; after all other inputs, lengths above all.
void fill_block_mask(const Case& c, AttentionGradRequest* request);

/// NaN and infinities in rows of K and V that no query sees, in queries past their length, and a
/// NaN in one key that only some of its queries see (those become NaN, the others must not). In
/// d_out: rows of queries past their length and of queries that see nothing, and one of a query
/// that sees some.
void poison(const Case& c, AttentionGradRequest* request);

}  // namespace regard::conformance

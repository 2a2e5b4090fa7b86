#pragma once

#include "regard/backend.h"

namespace regard::problem {

/// 8-bit floats, which are decoded exactly where they are read; all arithmetic is in f32.
std::vector<DtypeClaim> f8_claims();

/// Keys in pages or entries of a cache, rows that are appended to it, and rotary embedding.
FeatureSet cache_features();

/// What quantised keys may have: scales of rows, pages, entries and columns, and the Hadamard
/// matrix.
FeatureSet quantised_features();

/// Adds keys of any type that is no wider than q's: they are exact, so the error is that of q's
/// own type.
void add_narrower_keys(Claims* claims);

/// What MATH and EFFICIENT claim of forward: f32, bf16, f16 and those, all of the spine's features,
/// any head dim, any layout. scores_out and f64 are MATH's to add.
Claims forward_claims();

/// The same on CPUs, where keys may lie in pages or entries of a cache, and be of a type no wider
/// than q's.
Claims cpu_forward_claims();

/// From Isa::kAvx512Bf16 on products of bf16 are of pairs, for which probabilities are rounded to
/// bf16: the claim of one output type, and those of a forward.
void add_bf16_pairs(Claims* claims, Dtype out, double error_bound);
void add_bf16_pairs(Claims* forward);

/// What a backend of that forward claims of its backward, which computes in f32. Gradients have the
/// types of q, k and v, whatever out's.
Claims backward_claims(const Claims& forward);

/// The same on CPUs, which also have gradients of 8-bit floats and of tensors with descales.
Claims cpu_backward_claims(const Claims& forward);

}  // namespace regard::problem

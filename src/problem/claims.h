#pragma once

#include "regard/backend.h"

namespace regard::problem {

/// What MATH and EFFICIENT claim of forward: f32, bf16 and f16, all of the spine's features, any
/// head dim, any layout. scores_out and f64 are MATH's to add.
Claims forward_claims();

/// What a backend of that forward claims of its backward, which computes in f32. Gradients have the
/// types of q, k and v, whatever out's.
Claims backward_claims(const Claims& forward);

}  // namespace regard::problem

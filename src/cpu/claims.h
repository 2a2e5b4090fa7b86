#pragma once

#include <vector>

#include "regard/backend.h"

namespace regard::cpu {

/// What both baseline backends claim of forward, dtypes aside: all of the spine's features, any
/// head dim, any layout. scores_out is MATH's to add.
Claims forward_claims();

/// What every backward kernel claims of q's, k's and out's dtypes; it computes in f32.
std::vector<DtypeClaim> backward_dtypes();

}  // namespace regard::cpu

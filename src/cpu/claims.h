#pragma once

#include "regard/backend.h"

namespace regard::cpu {

/// What both baseline backends claim of forward, dtypes aside: all of the spine's features, any
/// head dim, any layout. scores_out is MATH's to add.
Claims forward_claims();

}  // namespace regard::cpu

#pragma once

#include "regard/request.h"

namespace regard::conformance {

/// Writes what a backward is given as `delta`: the sums of d_out * out, of the numbers that codes
/// and scales of d_out stand for.
void write_delta(const AttentionGradRequest& request);

}  // namespace regard::conformance

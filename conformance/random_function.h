#pragma once

#include <cstdint>
#include <string>

#include "conformance/rng.h"
#include "regard/params.h"

namespace regard::conformance {

/// Texts of functions for a call.
struct RandomFunctions {
  std::string score;  // empty: none
  std::string mask;
};

/// What to draw: expressions of any operators, or forms that people write (causal masks, windows,
/// documents, ALiBi, softcap, learned biases), alone and with each other. Score functions stay
/// within some 40 where scores do, and indices of captured tensors within bounds that intervals
/// prove. `params` state the extents.
RandomFunctions random_functions(const AttentionParams& params, bool has_score, bool has_mask,
                                 Rng* rng);

}  // namespace regard::conformance

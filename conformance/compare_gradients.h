#pragma once

#include <string>
#include <vector>

#include "oracle/gradients.h"
#include "regard/request.h"

// The tolerance of gradients (docs/numerics.md). Per head of d_q and d_bias, per kv head of d_k and
// d_v, per element of d_sinks, for the maximum and for the root mean square:
//
//   |dX - dX*| <= 1.5 |dX_ideal - dX*| + 2 u(T) max|dX*|
//                 + 4 u32 (sum |t| max(1, Smax) + sum |t before cancelling|)
//                 + 2 sqrt(sum (u(T) t)^2)
//
// where an element of dX is the sum of the terms t. All but the first line is an element's own. An
// element that no row and key contribute to is exactly 0. One that a row of huge scores reaches
// (4 u32 Smax > 0.1, scores not all equal) is held to what its probabilities can make of it.

namespace regard::conformance {

/// One gradient's part of a comparison.
struct GradPart {
  const char* name = "";  // "d_q"
  double error = 0.0;     // normwise: max |dX - dX*| / max|dX*|; heads whose gradient cancels to
                          // less than a hundredth of its terms aside
  double margin = 0.0;    // the largest share of its tolerance that a head used
};

struct GradComparison {
  bool ok = true;
  std::string text;     // the first element outside of its tolerance, with what was expected
  double error = 0.0;   // the worst of d_q, d_k and d_v
  double margin = 0.0;  // the largest share of its tolerance that a head of a gradient used
  std::vector<GradPart> parts;  // of each gradient that was requested, up to the first outside
};

/// Holds the gradients that the request names against the truth of the same problem. `probs`:
/// what the backend states that it rounds probabilities and the scores' gradients to.
GradComparison compare_gradients(const AttentionGradRequest& request,
                                 const oracle::GradTruth& truth, Dtype probs = Dtype::kF32);

}  // namespace regard::conformance

#pragma once

#include <cstdint>
#include <string>

#include "oracle/oracle.h"
#include "regard/request.h"

// The tolerance: how near to the truth an output must be (docs/numerics.md derives it). Per (b, h),
// for the maximum and for the root mean square:
//
//   out   |O - O*|     <= 1.5 |O_ideal - O*| + 2 u(T_out) max|O*| + 4 u32 max(1, Smax) max|V|
//   lse   |lse - lse*| <= 1.5 |lse_ideal - lse*| + 4 u32 max(1, Smax, |row_max|, |lse*|)
//
// Smax, max|V| and the maximum of lse are a row's own. max(1, Smax), because exp and the sum over
// keys round even where all scores are 0; without it a row of equal scores was held to the ideal's
// luck (7 of 40,000 runs failed, none by more than 5e-7 max|V|). NaN and infinities lie where the
// truth's lie. Padding rows and rows that see nothing are exactly 0. Rows with 4 u32 Smax > 0.1,
// where scores carry no fraction any more, are judged by structure. Of a score_function Smax is
// what rounding may do to its value, in unit roundoffs (oracle/evaluate.h); rows of which its
// roundings decide what they see are not judged.

namespace regard::conformance {

struct Comparison {
  bool ok = true;
  std::string text;         // the first element outside of its tolerance, with what was expected
  double out_error = 0.0;   // normwise: max |O - O*| / max|O*|, rows judged by structure aside
  double lse_error = 0.0;   // max |lse - lse*|
  double out_margin = 0.0;  // the largest share of its tolerance that a (b, h) used
  double lse_margin = 0.0;
  std::int64_t rows = 0, dead_rows = 0, padding_rows = 0, structural_rows = 0;
};

/// Holds the outputs of `buffers` (out, and lse, saved_stats, scores_out where present) against the
/// truth of the same problem. `probs`: the type that the backend states for its probabilities.
Comparison compare(const Buffers& buffers, const oracle::Truth& truth, Dtype probs = Dtype::kF32);

}  // namespace regard::conformance

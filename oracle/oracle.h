#pragma once

#include <cstdint>
#include <vector>

#include "regard/request.h"
#include "regard/status.h"

// The truth about an attention problem: three plain loops in double precision (long double for f64
// problems), written from docs/semantics.md alone. Nothing of src/ is used: no masks, no codecs, no
// random numbers.

namespace regard::oracle {

/// Errors planted in the oracle on purpose, so that tests can show that conformance notices one.
enum class Fault : std::uint8_t {
  kNone = 0,
  kDiagonalOffByOne,        // the diagonal one key further right
  kWindowExclusive,         // `<` for `<=` at the left edge of a window
  kSoftcapAfterBias,        // bias added before softcap
  kSinkIgnored,             // the sink is left out of the denominator
  kNeighbourHead,           // kv head of the next group
  kDeadRowMean,             // a fully masked row is the mean of V
  kLseBase2,                // lse in base 2
  kDropoutNotScaled,        // kept probabilities are not divided by their probability
  kDescaleIgnored,          // v without its descale
  kScalesIgnored,           // k and v without the scales of their rows
  kTreeIgnored,             // tree_mask hides nothing
  kFunctionIgnored,         // scores without score_function and score_callback
  kFunctionAfterBias,       // bias and ALiBi added before score_function
  kAmaxSigned,              // out_amax is the largest value, not the largest magnitude
  kMaskFunctionIgnored,     // mask_function hides nothing
  kQueryPositionUnshifted,  // q_pos is q_idx
  // of the gradients alone
  kGradDescaleIgnored,     // d_out without its descale
  kDeltaDropped,           // dS = P dP
  kKeyGradNotScaled,       // d_k without softmax_scale
  kGroupNotSummed,         // d_k and d_v of the first query head of a group alone
  kGradDropoutNotScaled,   // kDropoutNotScaled, on the way back alone
  kSoftcapSlopeMissing,    // without 1 - tanh^2
  kFunctionSlopeIgnored,   // d_q and d_k without the derivative of score_function
  kCapturedGradNotSummed,  // d_captured of the first query head alone
  kBiasGradNotReduced,     // the first index of a broadcast dimension alone
  kLseGradIgnored          // d_lse adds nothing
};

/// What one row looked like; the tolerance of the comparison is made of it.
struct RowFacts {
  std::int64_t visible_keys = 0;
  bool padding = false;       // the query is past its sequence's length
  bool undecided = false;     // a function hides a key or not by a kernel's roundings
  bool equal_scores = false;  // every visible edited score is the same number
  bool finite = true;  // no NaN or infinity in the row's query and its visible keys and values
  double smax = 0.0;   // |scale| sum|q_d k_d| + |bias| + |ALiBi|: its maximum over the visible
                       // keys within 104 of the row maximum. A function puts its own error in
                       // place of the product's (functions.h)
  double scaled_smax = 0.0;  // the same without functions
  double chain = 0.0;        // what rounding the partial sums of q k does to the score, in units of
                             // roundoff: its largest deviation over the same keys
  double row_max = 0.0;      // of the edited scores and the sink; 0 for rows without both
  double max_abs_v = 0.0;    // over visible finite keys
  double min_v = 0.0;        // over visible finite keys, 0 included where weights need not sum to 1
  double max_v = 0.0;
  double prob_spread = 0.0;     // sqrt(sum p^2) of the probabilities: 1 / sqrt(n) where n are equal
  double weight_sum_max = 1.0;  // 1, or the factor of kept probabilities under dropout
};

/// Dense row-major results. `ideal` is the best that the problem's own precision allows:
/// inputs as given and descaled in f32, f32 products and sums, P (unnormalised) rounded to the
/// dtype of q (f32 where that has 8 bits), the output not rounded (f64 problems: all in f64).
struct Truth {
  std::int64_t batch = 0, num_heads = 0, seqlen_q = 0, seqlen_kv = 0, head_dim_v = 0;
  Dtype dtype_probs = Dtype::kF32;  // of the ideal's P
  std::vector<long double> out;     // [B,Hq,Sq,Dv]
  std::vector<long double> lse;     // [B,Hq,Sq], natural log
  std::vector<double> out_ideal;    // [B,Hq,Sq,Dv]
  std::vector<double> lse_ideal;    // [B,Hq,Sq]
  std::vector<RowFacts> rows;       // [B,Hq,Sq]
  long double out_amax = 0;         // the largest magnitude of out; NaN where one is NaN
  ScoresKind scores_kind = ScoresKind::kNone;
  std::vector<long double> scores;  // [B,Hq,Sq,Skv], empty for kNone
  std::vector<double> scores_ideal;
  std::vector<double> score_sizes;    // as RowFacts::smax, of each score; empty without functions
  std::vector<std::uint8_t> visible;  // [B,Hq,Sq,Skv], empty for kNone
};

/// The truth about `request`: outputs are neither read nor written. The request must be one that
/// describe() accepts; what would make the oracle read out of bounds, lengths included, is refused.
Expected<Truth> compute(const AttentionRequest& request, Fault fault = Fault::kNone);

}  // namespace regard::oracle

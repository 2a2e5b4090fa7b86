#pragma once

#include <cstdint>

#include "regard/request.h"

namespace regard::test {

/// What a wrong backward gets wrong.
enum class GradBreak : std::uint8_t {
  kNone = 0,
  kDeltaDropped,
  kKeyGradNotScaled,
  kGroupNotSummed,    // d_k and d_v of the group's last query head
  kDropoutNotScaled,  // on the way back
  kSoftcapSlopeMissing,
  kBiasGradNotReduced,  // the last index of a broadcast dimension
  kLseGradIgnored,
  kFunctionSlopeMissing,   // the derivative of score_function
  kFunctionSlopeAtEdited,  // taken of the edited score
  kCapturedNotSummed,      // the last term alone
  kLastTileSkipped,        // of keys, for d_q
  kMaskMultiplied          // 0 * dP behind a mask, where a NaN survives
};

struct GradModelOptions {
  bool rounds_probs = false;  // P and dS to the dtype of q before they are multiplied
  bool from_lse = false;      // P = exp(score - lse), whatever the saved context holds
  GradBreak broken = GradBreak::kNone;
};

/// A plain tiled backward as a kernel would do it, in f32 (f64 for f64): online softmax over tiles
/// of keys, sums in lanes, delta from the stored `out`, scale and group at the end. Writes out, lse
/// and saved_stats where present, and every gradient that is. No part of the library.
void run_grad_model(const AttentionGradRequest& request, const GradModelOptions& options = {});

}  // namespace regard::test

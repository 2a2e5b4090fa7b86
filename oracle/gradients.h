#pragma once

#include <cstdint>
#include <vector>

#include "oracle/functions.h"
#include "oracle/oracle.h"
#include "regard/request.h"

// The truth about the gradients of an attention problem, written from docs/semantics.md in the
// arithmetic of the forward's truth.

namespace regard::oracle {

/// What one element of a gradient is made of. It is a sum of terms, one for each row and key that
/// see each other; rounding moves it by some unit roundoffs of these sizes.
struct Conditioning {
  std::int64_t terms = 0;       // 0: nothing reaches the element, it is exactly 0
  double scores = 0.0;          // sum of |term| max(1, Smax): what the rounding of scores does to P
  double cancelled = 0.0;       // sum of the terms' sizes before dP - delta (or 1 - tanh^2) cancels
  double variance = 0.0;        // of rounding P and dS to the ideal's dtype of P
  double delta_variance = 0.0;  // of delta: of rounding P to it, and out to its own; and of what
                                // is rounded below the normal numbers
  double flushed = 0.0;         // what probabilities that flush to 0 take from it
  double huge = 0.0;            // what rows of huge scores, whose P may be anything, may make of it
};

/// One gradient, dense and row-major. `ideal` is made of f32 products and sums with P and dS
/// rounded to the dtype of q, and of `out` rounded to its own (f64 problems: all in f64).
struct Gradient {
  std::int64_t shape[kMaxRank] = {1, 1, 1, 1};
  std::vector<long double> exact;
  std::vector<double> ideal;
  std::vector<Conditioning> sizes;

  std::size_t index(std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t i3) const {
    return static_cast<std::size_t>(((i0 * shape[1] + i1) * shape[2] + i2) * shape[3] + i3);
  }
};

struct GradTruth {
  Dtype dtype = Dtype::kF32;        // of q
  Dtype dtype_probs = Dtype::kF32;  // what the ideal rounds P to
  Dtype dtype_d_out = Dtype::kF32;  // what it rounds dS to where both have 8 bits
  Gradient d_q;                     // [B,Hq,Sq,Dqk]
  Gradient d_k;                     // [B,Hkv,Skv,Dqk], summed over the query heads of a group
  Gradient d_v;                     // [B,Hkv,Skv,Dv]
  Gradient d_bias;                  // the extents of attn_bias; empty without one
  Gradient d_sinks;                 // [1,1,1,Hq]; empty without sinks
  // The extents of captured tensors behind leading ones; empty where score_function reads no real
  // numbers of it.
  Gradient d_captured[kCapturedCount];
};

/// From which unit roundoff times Smax on scores carry no fraction any more (4 u32 Smax > 0.1).
inline constexpr double kStructuralFrom = 0.1;

/// The gradients of sum(out * d_out) + sum(lse * d_lse), whichever of them the request has fields
/// for. Of the saved context only its kind is read: rows of huge scores cannot be judged by lse.
Expected<GradTruth> compute_gradients(const AttentionGradRequest& request,
                                      Fault fault = Fault::kNone);

}  // namespace regard::oracle

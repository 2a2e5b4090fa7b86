#pragma once

#include "cpu/problem.h"

namespace regard::cpu {

/// A backward call as plain data. The forward's problem scales scores first, so that they and what
/// is saved of them are in natural units.
struct GradProblem {
  Problem problem{};
  View saved;  // [B,Hq,Sq,2]: row maximum and row sum; or [B,Hq,Sq]: lse
  bool saved_is_lse = false;
  View d_out;                 // [B,Hq,Sq,Dv]
  View delta, d_lse;          // [B,Hq,Sq]
  View d_q, d_k, d_v;         // as q, k, v
  View d_bias;                // as problem.bias
  View d_sinks;               // [Hq]
  bool bias_is_full[4] = {};  // dimensions of attn_bias that are not broadcast
};

}  // namespace regard::cpu

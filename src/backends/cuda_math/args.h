#pragma once

#include <cstdint>

#include "problem/grad_problem.h"

namespace regard::cuda_math {

/// A forward call. Matrices in the workspace are [B][Hkv][rows][Skv] of the arithmetic's type, f32
/// or f64, with the rows of all heads that read one kv head: row = query * group_size + g.
struct ForwardArgs {
  problem::Problem problem{};
  std::int64_t kv_entries = 0;  // extent 0 of k and v: sequences, pages, or entries of a cache
  char* scores = nullptr;       // then probabilities
};

struct BackwardArgs {
  problem::GradProblem grad{};
  char* probs = nullptr;
  char* d_scores = nullptr;  // gradients of dropped probabilities first
  char* delta = nullptr;     // [B][Hq][Sq]: the sum of d_out * out, less d_lse
};

}  // namespace regard::cuda_math

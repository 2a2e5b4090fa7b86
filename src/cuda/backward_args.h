#pragma once

#include "problem/grad_problem.h"

namespace regard::cuda {

/// A backward call: the problem, and a sum for each row in the workspace.
struct BackwardArgs {
  problem::GradProblem grad{};
  float* delta = nullptr;  // dense_row(): the sum of d_out * out, less d_lse
};

}  // namespace regard::cuda

#pragma once

#include "problem/grad_problem.h"

// Rows of packed tensors behind the last sequence: outputs and gradients are 0 there, lse is -inf.
// Nothing is done where sequences are not packed.

namespace regard::cpu {

/// Before a kernel's tasks raise it: element x < n of an amax is 0.
void clear_amax(const problem::View& amax, std::int64_t n) noexcept;

void clear_outputs_past_end(const problem::Problem& p) noexcept;
void clear_gradients_past_end(const problem::GradProblem& g) noexcept;

}  // namespace regard::cpu

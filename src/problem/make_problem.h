#pragma once

#include "problem/grad_problem.h"
#include "problem/problem.h"
#include "regard/params.h"
#include "regard/request.h"

namespace regard::problem {

/// The call as kernels read it, into a fresh Problem. `params` are the call's own, `buffers` are
/// checked. Without `functions`, memory for what the call's functions are, those are left out.
void make_problem(const AttentionParams& params, const Buffers& buffers, Problem* problem,
                  Functions* functions = nullptr) noexcept;

/// The same of a backward call.
void make_grad_problem(const AttentionParams& params, const Buffers& buffers,
                       const GradBuffers& gradients, GradProblem* problem,
                       Functions* functions = nullptr) noexcept;

}  // namespace regard::problem

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

/// Bytes at the start of a workspace for a copy of the queries that is rotated, or mixed; 0 without
/// either.
std::int64_t rotated_queries_bytes(const AttentionParams& params) noexcept;

/// That copy as the problem's q, dense at `data`; of packed rows, too.
View rotated_view(const Problem& problem, void* data) noexcept;

}  // namespace regard::problem

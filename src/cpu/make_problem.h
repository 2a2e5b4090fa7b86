#pragma once

#include "cpu/problem.h"
#include "regard/params.h"
#include "regard/request.h"

namespace regard::cpu {

/// The call as kernels read it. `params` are the call's own, `buffers` are checked.
Problem make_problem(const AttentionParams& params, const Buffers& buffers) noexcept;

}  // namespace regard::cpu

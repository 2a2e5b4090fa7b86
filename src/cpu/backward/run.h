#pragma once

#include <cstdint>
#include <string>

#include "cpu/backward/kernels.h"
#include "regard/backend.h"
#include "regard/env.h"

// What a backend plans and runs of the backward in args.h.

namespace regard::cpu {

/// The best kernels for a machine of `isa`.
const BackwardKernels& backward_kernels(Isa isa) noexcept;

/// The best of one pass: of pairs where q, k, v, out and so d_out are bf16, and no descales make
/// other numbers of them.
const BackwardKernel& one_pass_kernel(const AttentionParams& params, Isa isa) noexcept;

/// Bytes of all workers, and in one pass of as many heads' sums as are under way; saturating.
/// Two passes: a function of head dims, group size, dtype and workers alone. One pass: linear in
/// the lengths, and of as many heads as stay within max_bytes, of one at least.
std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env,
                                      const BackwardKernel& kernel,
                                      std::int64_t max_bytes) noexcept;

/// `kernel` is one of the above for env.isa, `backend` begins its name.
KernelPlan plan_backward(const AttentionKey& key, const Env& env, const BackwardKernel& kernel,
                         const std::string& backend);

/// Computes the gradients that are present.
void run_backward(const BackwardKernel& kernel, const KernelPlan& plan,
                  const AttentionParams& params, const Buffers& buffers,
                  const GradBuffers& gradients, const Launch& launch);

}  // namespace regard::cpu

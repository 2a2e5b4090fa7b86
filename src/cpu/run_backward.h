#pragma once

#include <cstdint>

#include "cpu/backward.h"
#include "regard/backend.h"

// What a backend plans and runs of the backward in backward.h.

namespace regard::cpu {

/// Bytes of all slots; a function of head dims, group size, dtype and slots alone; saturating.
std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env,
                                      const BackwardKernel& kernel) noexcept;

/// All of a plan but its kernel's name and isa.
KernelPlan plan_backward(const AttentionKey& key, const Env& env, const BackwardKernel& kernel);

/// Computes the gradients that are present.
void run_backward(const BackwardKernel& kernel, const KernelPlan& plan,
                  const AttentionParams& params, const Buffers& buffers,
                  const GradBuffers& gradients, const Launch& launch);

}  // namespace regard::cpu

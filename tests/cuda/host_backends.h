#pragma once

#include <memory>

#include "regard/context.h"
#include "tests/cuda/host_block.h"

namespace regard::cuda_test {

/// How the backends of host_context() run their kernels, and what ran since it was made.
struct Schedule {
  Order order = Order::kForward;
  std::int64_t most_blocks = 1 << 30;
  Counts counts{};
};
Schedule& schedule();

/// A Context of this machine in which the CUDA backends serve the CPU, by their own plans, claims
/// and launches, with the kernels on HostRunner.
struct HostContext {
  std::unique_ptr<Context> context;
  BackendRef math, efficient;
};
HostContext make_host_context();

}  // namespace regard::cuda_test

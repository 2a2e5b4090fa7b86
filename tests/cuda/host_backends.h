#pragma once

#include <memory>
#include <vector>

#include "cuda/forward_args.h"
#include "regard/context.h"
#include "tests/cuda/host_block.h"

namespace regard::cuda_test {

struct Trace;  // host_wgmma.h

/// How the backends of host_context() run their kernels, and what ran since it was made.
struct Schedule {
  Order order = Order::kForward;
  std::int64_t max_blocks = 1 << 30;
  Counts counts{};
  Races races = Races::kOfThreads;
  Trace* trace = nullptr;  // of wgmma's kernels
};
Schedule& schedule();

/// A backend, in a Context where it plans the kernels of one architecture.
struct HostBackend {
  std::shared_ptr<Context> context;
  BackendRef ref;
  bool is_flash;  // on tensor cores

  /// Whether its own record has the problem.
  bool serves(const AttentionParams& params) const;
};

/// The CUDA backends, which serve the CPU there by their own plans, claims and launches, with the
/// kernels on HostRunner: MATH and EFFICIENT for compute capability 7.5, and FLASH for 8.0.
std::vector<HostBackend> make_host_backends();

/// The forward kernels of MATH, EFFICIENT and FLASH, whole rows, with arguments that nobody has
/// checked.
struct UncheckedForward {
  bool is_flash;
  Status (*run)(const cuda::ForwardArgs& args);
};
std::vector<UncheckedForward> unchecked_forwards();

/// FLASH for compute capability 9.0, whose forward is wgmma's where that has the call: one for each
/// schedule. At 256 dims turns and wide are overlapped.
std::vector<HostBackend> make_wgmma_backends();

}  // namespace regard::cuda_test

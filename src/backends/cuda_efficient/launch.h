#pragma once

#include "backends/cuda_efficient/args.h"
#include "cuda/append_args.h"
#include "regard/status.h"

namespace regard::cuda_efficient {

/// Enqueues the launches of a call; backend.h's class is given a device's or a test's.
struct Launcher {
  Status (*forward)(const ForwardArgs& args, void* stream);
  Status (*backward)(const BackwardArgs& args, void* stream);
  /// What the forward reads, before it.
  Status (*append)(const cuda::AppendArgs& args, void* stream);
};

/// On a CUDA stream (launch.cu).
extern const Launcher kDeviceLauncher;

}  // namespace regard::cuda_efficient

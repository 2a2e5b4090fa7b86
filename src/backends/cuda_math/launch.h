#pragma once

#include "backends/cuda_math/args.h"
#include "cuda/append_args.h"
#include "regard/status.h"

namespace regard::cuda_math {

/// Enqueues the launches of a call, with f64 arithmetic or f32; a device's, or a test's.
struct Launcher {
  Status (*forward)(const ForwardArgs& args, bool f64, void* stream);
  Status (*backward)(const BackwardArgs& args, bool f64, void* stream);
  /// What the forward reads, before it.
  Status (*append)(const cuda::AppendArgs& args, void* stream);
};

/// On a CUDA stream (launch.cu).
extern const Launcher kDeviceLauncher;

}  // namespace regard::cuda_math

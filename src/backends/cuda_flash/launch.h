#pragma once

#include "backends/cuda_flash/args.h"
#include "backends/cuda_flash/wgmma_shape.h"
#include "cuda/append_args.h"
#include "regard/status.h"

namespace regard::cuda_flash {

/// Enqueues the launches of a call; flash_backend.h's class is given a device's or a test's.
struct Launcher {
  Status (*forward)(const ForwardArgs& args, void* stream);
  Status (*backward)(const BackwardArgs& args, void* stream);
  /// What the forward reads, before it.
  Status (*append)(const cuda::AppendArgs& args, void* stream);
  /// By wgmma; null where these kernels are not built.
  Status (*wgmma_forward)(const ForwardArgs& args, Schedule schedule, void* stream);
};

/// Of wgmma_launch.cu, which not every build has.
Status wgmma_forward(const ForwardArgs& args, Schedule schedule, void* stream);

/// On a CUDA stream (launch.cu).
extern const Launcher kDeviceLauncher;

}  // namespace regard::cuda_flash

#include "backends/cuda_efficient/launch.h"

#include "backends/cuda_efficient/units.h"
#include "cuda/append.cuh"

namespace regard::cuda_efficient {
namespace {

Status forward(const ForwardArgs& args, void* stream) {
  cuda::DeviceRunner run(stream);
  run_forward(run, args);
  return run.status("efficient");
}

Status backward(const BackwardArgs& args, void* stream) {
  cuda::DeviceRunner run(stream);
  run_backward(run, args);
  return run.status("efficient");
}

Status append(const cuda::AppendArgs& args, void* stream) {
  cuda::DeviceRunner run(stream);
  cuda::run_append(run, args);
  return run.status("efficient");
}

}  // namespace

const Launcher kDeviceLauncher = {forward, backward, append};

}  // namespace regard::cuda_efficient

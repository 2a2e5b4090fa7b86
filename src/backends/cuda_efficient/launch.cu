#include "backends/cuda_efficient/launch.h"

#include "backends/cuda_efficient/units.h"
#include "cuda/launch_append.h"

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

}  // namespace

const Launcher kDeviceLauncher = {forward, backward, cuda::launch_append};

}  // namespace regard::cuda_efficient

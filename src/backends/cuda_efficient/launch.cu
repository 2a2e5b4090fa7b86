#include "backends/cuda_efficient/launch.h"

#include "backends/cuda_efficient/units.h"

namespace regard::cuda_efficient {
namespace {

Status forward(const ForwardArgs& args, bool on_tensor_cores, void* stream) {
  cuda::DeviceRunner run(stream);
  run_forward(run, args, on_tensor_cores);
  return run.status("efficient");
}

Status backward(const BackwardArgs& args, bool on_tensor_cores, void* stream) {
  cuda::DeviceRunner run(stream);
  run_backward(run, args, on_tensor_cores);
  return run.status("efficient");
}

}  // namespace

const Launcher kDeviceLauncher = {forward, backward};

}  // namespace regard::cuda_efficient

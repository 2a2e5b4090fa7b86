#include "backends/cuda_flash/launch.h"

#include "backends/cuda_flash/units.h"

namespace regard::cuda_flash {
namespace {

Status forward(const ForwardArgs& args, void* stream) {
  cuda::DeviceRunner run(stream);
  run_forward(run, args);
  return run.status("flash");
}

Status backward(const BackwardArgs& args, void* stream) {
  cuda::DeviceRunner run(stream);
  run_backward(run, args);
  return run.status("flash");
}

}  // namespace

const Launcher kDeviceLauncher = {forward, backward};

}  // namespace regard::cuda_flash

#include "backends/cuda_flash/launch.h"

#include "backends/cuda_flash/units.h"

namespace regard::cuda_flash {
namespace {

Status forward(const ForwardArgs& args, void* stream) {
  cuda::DeviceRunner run(stream);
  run_forward(run, args);
  return run.status("flash");
}

}  // namespace

const Launcher kDeviceLauncher = {forward};

}  // namespace regard::cuda_flash

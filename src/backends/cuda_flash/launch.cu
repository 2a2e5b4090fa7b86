#include "backends/cuda_flash/launch.h"

#include "backends/cuda_flash/units.h"
#include "cuda/launch_append.h"

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

#if defined(REGARD_WGMMA)
constexpr auto kWgmmaForward = wgmma_forward;
#else
constexpr Status (*kWgmmaForward)(const ForwardArgs&, Schedule, void*) = nullptr;
#endif

}  // namespace

const Launcher kDeviceLauncher = {forward, backward, cuda::launch_append, kWgmmaForward};

}  // namespace regard::cuda_flash

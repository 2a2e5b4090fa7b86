#include "backends/cuda_math/launch.h"

#include "backends/cuda_math/steps.cuh"
#include "cuda/launch.h"
#include "cuda/launch_append.h"

namespace regard::cuda_math {
namespace {

Status forward(const ForwardArgs& args, bool f64, void* stream) {
  cuda::DeviceRunner run(stream);
  if (f64) {
    run_forward<double>(run, args);
  } else {
    run_forward<float>(run, args);
  }
  return run.status("math");
}

Status backward(const BackwardArgs& args, bool f64, void* stream) {
  cuda::DeviceRunner run(stream);
  if (f64) {
    run_backward<double>(run, args);
  } else {
    run_backward<float>(run, args);
  }
  return run.status("math");
}

}  // namespace

const Launcher kDeviceLauncher = {forward, backward, cuda::launch_append};

}  // namespace regard::cuda_math

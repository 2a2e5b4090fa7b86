#include "cuda/launch_append.h"

#include "cuda/append.cuh"
#include "cuda/launch.h"

namespace regard::cuda {

Status launch_append(const AppendArgs& args, void* stream) {
  DeviceRunner run(stream);
  run_append(run, args);
  return run.status("append");
}

}  // namespace regard::cuda

#include "platform/cuda_info.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "platform/cudnn_library.h"

namespace regard {
namespace {

// The runtime is linked statically and loads the driver here: without one, or without a device, the
// count fails and the machine has no CUDA.
CudaInfo read_devices() {
  CudaInfo info;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());  // else the next caller of the runtime finds it
    return info;
  }
  for (int device = 0; device < count; ++device) {
    CudaDevice& found = info.devices.emplace_back();
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      continue;
    }
    const int sm = properties.major * 10 + properties.minor;
    found = {properties.name, sm};
    info.sm_version = info.sm_version == 0 ? sm : std::min(info.sm_version, sm);
    if (info.device_name.empty()) info.device_name = properties.name;
  }
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess) info.driver = driver;
  if (info.sm_version != 0) info.cudnn_version = cudnn_library().version;
  return info;
}

}  // namespace

bool built_with_cuda() { return true; }

CudaInfo read_cuda_info() {
  static const CudaInfo info = read_devices();
  return info;
}

}  // namespace regard

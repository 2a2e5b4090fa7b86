#pragma once

#include <cstdint>
#include <string>

namespace regard {

/// What this build and the CUDA devices that the process may see are. Without a driver or a device
/// everything but `built` is empty.
struct CudaInfo {
  bool built = false;
  std::int32_t sm_version = 0;  // the least among the devices: what is planned for it runs on all
  std::string device_name;      // of the first
  std::int32_t driver = 0;
  std::int32_t cudnn_version = 0;
};

/// Reads the devices once in a process's life: neither they nor the driver change.
CudaInfo read_cuda_info();

}  // namespace regard

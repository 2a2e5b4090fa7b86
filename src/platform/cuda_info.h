#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regard/env.h"

namespace regard {

/// What the CUDA devices that the process may see are. Without a driver or a device everything is
/// empty.
struct CudaInfo {
  std::int32_t sm_version =
      0;                    // the smallest among the devices: what is planned for it runs on all
  std::string device_name;  // of the first
  std::vector<CudaDevice> devices;
  std::int32_t driver = 0;
  std::int32_t cudnn_version = 0;
};

bool built_with_cuda();

/// Starts the driver, and reads the devices once in a process's life: neither change.
CudaInfo read_cuda_info();

}  // namespace regard

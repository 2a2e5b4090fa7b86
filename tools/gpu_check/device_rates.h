#pragma once

#include <string>

#include "regard/env.h"
#include "tools/gpu_check/device_memory.h"

// What the device is, and what it does in a second without attention.

namespace regard::gpu_check {

struct DeviceFacts {
  std::string name;
  int sm_version = 0, driver = 0, runtime = 0, cudnn = 0;
  double memory_gib = 0;
};
DeviceFacts read_facts(const Env& env);

/// Of the moment, in MHz; 0 where the driver's management library is not there.
int sm_clock_mhz();

/// TFLOPS of cuBLAS's bf16 product of 8192^3 with f32 sums; 0 without cuBLAS.
double matmul_tflops(DeviceMemory& memory);
/// GB/s read and written by a copy of 1 GiB on the device.
double copy_gbps(DeviceMemory& memory);

}  // namespace regard::gpu_check

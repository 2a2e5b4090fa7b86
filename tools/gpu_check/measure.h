#pragma once

#include <functional>
#include <string>

#include "regard/context.h"
#include "tools/gpu_check/carrier.h"

// What the device does in a second: its own rates, and attention on it.

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
double matmul_tflops();
/// GB/s read and written by a copy of 1 GiB on the device.
double copy_gbps();

struct Timing {
  std::string error;  // nothing below holds
  double ms = 0;      // median of seven runs of several calls each
  double spread = 0;  // (largest - smallest) / median
  double tflops = 0;
  double host_us = 0;  // of the host, a call
  int clock_mhz = 0;
};

/// The case's forward, or with `grad` its backward, on that backend alone.
Timing measure(Context& context, const Case& c, const BackendRef& backend);

}  // namespace regard::gpu_check

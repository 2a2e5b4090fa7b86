#pragma once

#include <functional>

#include "tools/gpu_check/device_memory.h"

namespace regard::gpu_check {

/// How long is measured.
struct Effort {
  double run_ms = 50;  // of launches, one after another
  int runs = 7;        // of which the median counts
};

struct Median {
  double ms = 0;      // a launch
  double spread = 0;  // (largest - smallest) / median
};

using Launcher = std::function<void()>;

Median median_time(DeviceMemory& memory, const Effort& effort, const Launcher& launch);

/// Of two in turns, so that both see the same clocks.
struct Medians {
  Median a, b;
};
Medians median_times(DeviceMemory& memory, const Effort& effort, const Launcher& a,
                     const Launcher& b);

/// Microseconds of the host's for a launch, while the device's queue has room.
double host_time(DeviceMemory& memory, const Effort& effort, const Launcher& launch);

}  // namespace regard::gpu_check

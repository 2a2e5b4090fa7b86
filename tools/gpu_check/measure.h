#pragma once

#include <string>
#include <utility>
#include <vector>

#include "conformance/run.h"
#include "regard/context.h"
#include "tools/gpu_check/timing.h"

// Attention on the device: its speed, beside cuDNN's own, and what a call costs the host.

namespace regard::gpu_check {

/// Where and how it is measured.
struct Bench {
  Context& context;
  DeviceMemory& memory;
  Effort effort;
  bool rehearse;  // regard's own call stands in for cuDNN's
};

struct Timing {
  std::string error;  // nothing below holds
  Median median;
  double tflops = 0;
  double gbps = 0;  // of what must be read and written at least
  int clock_mhz = 0;
  std::string kernel;  // of the direction that was measured
  /// Of a forward: other ways to run the plan (Plan::variants), and their TFLOPS.
  std::vector<std::pair<std::string, double>> variants;
};
/// The case's forward, or with `grad` its backward, on that backend alone.
Timing measure(const Bench& bench, const Case& c, const BackendRef& backend);

/// CUDNN through regard beside cuDNN called directly, in turns on the same tensors.
struct Comparison {
  std::string error;
  Median regard, direct;
  /// Above 1: regard is faster.
  double ratio() const { return direct.ms / regard.ms; }
};
Comparison compare_with_cudnn(const Bench& bench, const Case& c, const BackendRef& backend,
                              bool backward);

/// Microseconds that the host spends on a call whose plan is there.
struct Overhead {
  std::string error;
  double attention_us = 0;  // attention(): described and looked up
  double execute_us = 0;    // execute() with the plan in hand
};
Overhead measure_overhead(const Bench& bench, const Case& c, const BackendRef& backend);

/// The case's forward, and with `grad` its backward, once; the text of an error, or "".
std::string launch_once(const Bench& bench, const Case& c, const BackendRef& backend);

}  // namespace regard::gpu_check

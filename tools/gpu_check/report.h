#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tools/gpu_check/measure.h"

namespace regard::gpu_check {

/// One backend's count of cases.
struct Tally {
  long passed = 0, refused = 0, failed = 0;
  double worst_share = 0;  // of the bar, of any output or gradient
};

struct BenchRow {
  std::string words, backend;
  Timing timing;
};

/// Everything that a run has seen so far. Written again after every step, so that a run that is cut
/// off leaves what it has.
struct Report {
  std::string prefix;  // PREFIX.json and PREFIX.md
  bool dry_run = false, complete = false;
  DeviceFacts facts;
  double matmul_tflops = 0, copy_gbps = 0;
  int idle_clock_mhz = 0, clock_mhz = 0;
  std::map<std::string, Tally> tallies;
  std::vector<std::string> failures;
  std::vector<BenchRow> rows;

  void write() const;
};

}  // namespace regard::gpu_check

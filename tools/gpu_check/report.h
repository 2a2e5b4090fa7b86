#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tools/gpu_check/device_rates.h"
#include "tools/gpu_check/measure.h"

namespace regard::gpu_check {

/// One backend's count of cases.
struct Tally {
  long passed = 0, refused = 0, failed = 0;
  double worst_share = 0;  // of the tolerance, of any output or gradient
};

struct BenchRow {
  std::string words, backend;
  Timing timing;
};
struct ComparisonRow {
  std::string words;
  bool backward;
  Comparison comparison;
};
struct OverheadRow {
  std::string words, backend;
  Overhead overhead;
};

// What the measurements are held to.
inline constexpr double kMaxRatio = 1.02;  // CUDNN through regard to cuDNN called directly
inline constexpr double kMaxOverheadUs = 8;

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
  std::vector<ComparisonRow> comparisons;
  std::vector<OverheadRow> overheads;

  void write() const;
};

}  // namespace regard::gpu_check

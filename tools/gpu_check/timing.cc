#include "tools/gpu_check/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace regard::gpu_check {
namespace {

int launches_a_run(DeviceMemory& memory, const Effort& effort, const Launcher& launch) {
  memory.time(2, launch);
  const double once = std::max(memory.time(1, launch), 1e-3);
  return static_cast<int>(std::clamp(effort.run_ms / once, 1.0, 2000.0));
}

Median median_of(std::vector<double> runs) {
  std::sort(runs.begin(), runs.end());
  const double middle = runs[runs.size() / 2];
  return {middle, middle > 0 ? (runs.back() - runs.front()) / middle : 0};
}

}  // namespace

Median median_time(DeviceMemory& memory, const Effort& effort, const Launcher& launch) {
  const int count = launches_a_run(memory, effort, launch);
  std::vector<double> runs;
  for (int i = 0; i < effort.runs; ++i) runs.push_back(memory.time(count, launch) / count);
  return median_of(std::move(runs));
}

Medians median_times(DeviceMemory& memory, const Effort& effort, const Launcher& a,
                     const Launcher& b) {
  const int count_a = launches_a_run(memory, effort, a);
  const int count_b = launches_a_run(memory, effort, b);
  std::vector<double> runs_a, runs_b;
  for (int i = 0; i < effort.runs; ++i) {
    runs_a.push_back(memory.time(count_a, a) / count_a);
    runs_b.push_back(memory.time(count_b, b) / count_b);
  }
  return {median_of(std::move(runs_a)), median_of(std::move(runs_b))};
}

double host_time(DeviceMemory& memory, const Effort& effort, const Launcher& launch) {
  constexpr int kCount = 16;
  std::vector<double> runs;
  for (int run = 0; run < effort.runs; ++run) {
    memory.wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCount; ++i) launch();
    const auto end = std::chrono::steady_clock::now();
    runs.push_back(std::chrono::duration<double, std::micro>(end - begin).count() / kCount);
  }
  memory.wait();
  return median_of(std::move(runs)).ms;
}

}  // namespace regard::gpu_check

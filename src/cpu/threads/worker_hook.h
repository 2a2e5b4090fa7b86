#pragma once

#include <atomic>
#include <cstdint>

namespace regard::cpu {

enum class WorkerPoint {
  kTake,     // takes work that another worker could take instead
  kWait,     // waits for what another worker computes
  kPublish,  // has set a count to a value
  kReady     // goes on because a count is at least a value
};

/// Called by a worker at each such point. bench/workers installs one, which runs workers one at a
/// time in the order of simulated time; null in every other program.
using WorkerHook = void (*)(WorkerPoint, const std::int64_t* count, std::int64_t value);
inline constinit std::atomic<WorkerHook> worker_hook{nullptr};

/// False when no hook is installed.
inline bool call_worker_hook(WorkerPoint point, const std::int64_t* count = nullptr,
                             std::int64_t value = 0) noexcept {
  const WorkerHook hook = worker_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook(point, count, value);
  return hook != nullptr;
}

}  // namespace regard::cpu

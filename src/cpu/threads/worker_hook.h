#pragma once

#include <atomic>

namespace regard::cpu {

enum class WorkerPoint {
  kTake,  // takes work that another worker could take instead
  kWait   // waits for what another worker computes
};

/// Called by a worker at each such point. bench/workers installs one, which runs workers one at a
/// time in the order of simulated time; null in every other program.
using WorkerHook = void (*)(WorkerPoint);
inline constinit std::atomic<WorkerHook> worker_hook{nullptr};

/// False when no hook is installed.
inline bool call_worker_hook(WorkerPoint point) noexcept {
  const WorkerHook hook = worker_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook(point);
  return hook != nullptr;
}

}  // namespace regard::cpu

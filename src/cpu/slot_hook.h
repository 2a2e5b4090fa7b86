#pragma once

#include <atomic>

namespace regard::cpu {

enum class SlotPoint {
  kTake,  // takes work that another slot could take instead
  kWait   // waits for what another slot computes
};

/// Called by a slot at each such point. bench/workers installs one, which runs slots one at a time
/// in the order of simulated time; null in every other program.
using SlotHook = void (*)(SlotPoint);
inline constinit std::atomic<SlotHook> slot_hook{nullptr};

/// False when no hook is installed.
inline bool call_slot_hook(SlotPoint point) noexcept {
  const SlotHook hook = slot_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook(point);
  return hook != nullptr;
}

}  // namespace regard::cpu

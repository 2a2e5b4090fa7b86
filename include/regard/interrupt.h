#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "regard/export.h"

namespace regard {

/// Ends a long call on CPU backends early. They check it between tasks and leave out the remaining
/// ones; the call then returns kInterrupted and its outputs hold no result. Use one object for one
/// call.
class REGARD_EXPORT Interrupt {
 public:
  /// Returning true ends the call. Called at most four times a second, on the thread that made the
  /// object, while that thread computes; so it may be slow.
  using Poll = bool (*)(void* state) noexcept;

  /// Without `poll` only request() ends the call.
  explicit Interrupt(Poll poll = nullptr, void* state = nullptr) noexcept;

  /// Ends the call. May be called from any thread and from a signal handler.
  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

  /// For backends, between tasks: polls if it is time to, and returns requested().
  bool check() noexcept;

 private:
  const Poll poll_;
  void* const state_;
  const std::thread::id thread_;
  std::int64_t next_poll_ns_ = 0;
  std::atomic<bool> requested_{false};
};

}  // namespace regard

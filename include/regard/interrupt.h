#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "regard/export.h"

namespace regard {

/// Ends a long call on CPU backends before its time. They check it between tasks and leave the rest
/// out; the call then returns kInterrupted and its outputs hold no result. One object serves one
/// call.
class REGARD_EXPORT Interrupt {
 public:
  /// True ends the call. Runs at most four times a second, on the thread that made the object,
  /// while that thread computes, so it may do what is slow.
  using Poll = bool (*)(void* state) noexcept;

  /// A null `poll` leaves request().
  explicit Interrupt(Poll poll = nullptr, void* state = nullptr) noexcept;

  /// Ends the call; from any thread, and from a signal handler.
  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

  /// For backends, between tasks: requested(), after a poll where one is due.
  bool check() noexcept;

 private:
  const Poll poll_;
  void* const state_;
  const std::thread::id thread_;
  std::int64_t next_poll_ns_ = 0;
  std::atomic<bool> requested_{false};
};

}  // namespace regard

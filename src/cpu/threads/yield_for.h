#pragma once

#include <chrono>
#include <thread>

namespace regard::cpu {

/// Yields until `is_ready()` or until `limit` is over; whether it is ready. A limit of time, for a
/// yield takes 0.3 microseconds on an idle CPU and a time slice (3 ms) beside another program.
template <typename IsReady>
bool yield_for(std::chrono::nanoseconds limit, IsReady is_ready) noexcept {
  if (is_ready()) return true;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    std::this_thread::yield();
    if (is_ready()) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace regard::cpu

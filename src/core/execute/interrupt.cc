#include "regard/interrupt.h"

#include <chrono>

namespace regard {
namespace {

constexpr std::int64_t kPollIntervalNs = 250'000'000;

std::int64_t clock_ns() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

}  // namespace

Interrupt::Interrupt(Poll poll, void* state) noexcept
    : poll_(poll), state_(state), thread_(std::this_thread::get_id()) {}

bool Interrupt::check() noexcept {
  if (requested() || poll_ == nullptr || thread_ != std::this_thread::get_id()) return requested();
  const std::int64_t now = clock_ns();
  if (now < next_poll_ns_) return false;
  next_poll_ns_ = now + kPollIntervalNs;
  if (poll_(state_)) request();
  return requested();
}

}  // namespace regard

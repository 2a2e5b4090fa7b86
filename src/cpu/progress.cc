#include "cpu/progress.h"

#include <atomic>
#include <thread>

namespace regard::cpu {

void set_count(std::int64_t* count, std::int64_t value) noexcept {
  std::atomic_ref(*count).store(value, std::memory_order_release);
}

std::int64_t add_to_count(std::int64_t* count, std::int64_t difference) noexcept {
  return std::atomic_ref(*count).fetch_add(difference, std::memory_order_acq_rel);
}

std::int64_t read_count(const std::int64_t* count) noexcept {
  return std::atomic_ref(*const_cast<std::int64_t*>(count)).load(std::memory_order_acquire);
}

void wait_for_count(const std::int64_t* count, std::int64_t value) noexcept {
  while (read_count(count) < value) let_others_run();
}

void let_others_run() noexcept { std::this_thread::yield(); }

}  // namespace regard::cpu

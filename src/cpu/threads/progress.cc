#include "cpu/threads/progress.h"

#include <atomic>
#include <thread>

#include "cpu/threads/worker_hook.h"
#include "cpu/threads/yield_for.h"
#include "regard/interrupt.h"

namespace regard::cpu {

void set_count(std::int64_t* count, std::int64_t value) noexcept {
  call_worker_hook(WorkerPoint::kPublish, count, value);
  const std::atomic_ref shared(*count);
  shared.store(value, std::memory_order_release);
  shared.notify_all();
}

std::int64_t take_from_count(std::int64_t* count) noexcept {
  call_worker_hook(WorkerPoint::kTake);
  return add_to_count(count, -1);
}

std::int64_t add_to_count(std::int64_t* count, std::int64_t difference) noexcept {
  const std::atomic_ref shared(*count);
  const std::int64_t before = shared.fetch_add(difference, std::memory_order_acq_rel);
  call_worker_hook(WorkerPoint::kPublish, count, before + difference);
  shared.notify_all();
  return before;
}

std::int64_t read_count(const std::int64_t* count) noexcept {
  return std::atomic_ref(*const_cast<std::int64_t*>(count)).load(std::memory_order_acquire);
}

void wait_for_count(const std::int64_t* count, std::int64_t value) noexcept {
  const auto is_ready = [=] { return read_count(count) >= value; };
  while (!is_ready() && call_worker_hook(WorkerPoint::kWait)) {
  }
  if (yield_for(kYieldTime, is_ready)) {
    call_worker_hook(WorkerPoint::kReady, count, value);
    return;
  }
  const std::atomic_ref shared(*const_cast<std::int64_t*>(count));
  for (std::int64_t now = read_count(count); now < value; now = read_count(count)) {
    shared.wait(now, std::memory_order_acquire);
  }
}

bool is_interrupted(Interrupt* interrupt) noexcept {
  return interrupt != nullptr && interrupt->check();
}

void let_others_run() noexcept {
  if (!call_worker_hook(WorkerPoint::kWait)) std::this_thread::yield();
}

}  // namespace regard::cpu

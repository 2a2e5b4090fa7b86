#include "process_context.h"

#include <pthread.h>

#include <atomic>
#include <memory>

#include "python_log.h"

namespace regard::python {
namespace {

std::atomic<Context*> context{nullptr};
std::atomic<std::int32_t> chosen_concurrency{0};  // 0: the environment's

void forget_after_fork() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { context.store(nullptr, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

}  // namespace

Context& process_context() {
  if (Context* const made = context.load(std::memory_order_acquire)) return *made;
  forget_after_fork();
  auto fresh = std::make_unique<Context>();
  connect_log(*fresh);
  if (const std::int32_t chosen = chosen_concurrency.load(); chosen != 0) {
    regard::check(fresh->set_concurrency(chosen));
  }
  Context* expected = nullptr;
  if (context.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) {
    return *fresh.release();
  }
  return *expected;  // another thread was first
}

Status set_process_concurrency(Context& context, std::int32_t concurrency) {
  if (Status status = context.set_concurrency(concurrency); !status.ok()) return status;
  chosen_concurrency.store(concurrency);
  return {};
}

}  // namespace regard::python

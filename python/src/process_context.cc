#include "process_context.h"

#include <pthread.h>

#include <atomic>
#include <memory>

#include "python_log.h"

namespace regard::python {
namespace {

std::atomic<Context*> context{nullptr};

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
  Context* expected = nullptr;
  if (context.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) {
    return *fresh.release();
  }
  return *expected;  // another thread was first
}

}  // namespace regard::python

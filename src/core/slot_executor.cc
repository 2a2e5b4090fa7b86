#include "core/slot_executor.h"

#include <atomic>

#include "base/float_environment.h"
#include "base/message.h"

namespace regard {
namespace {

struct Run {
  Executor::Task task;
  void* state;
  std::atomic<int> ran{0};
};

void run_slot(void* opaque, int slot) {
  Run& run = *static_cast<Run*>(opaque);
  const DefaultFloatEnvironment environment;
  run.task(run.state, slot);
  run.ran.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void SlotExecutor::run(int slots, Task task, void* state) {
  Run run{task, state};
  inner_.run(slots, run_slot, &run);
  const int ran = run.ran.load(std::memory_order_relaxed);
  if (ran == slots || expected_ > 0) return;
  expected_ = slots;
  ran_ = ran;
}

Status SlotExecutor::status(const char* where) const {
  if (expected_ == 0) return {};
  return invalid(where, name_, " had run ", ran_, " of ", expected_,
                 " slots when its run() returned, expected all; outputs may be incomplete");
}

}  // namespace regard

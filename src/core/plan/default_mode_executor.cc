#include "core/plan/default_mode_executor.h"

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

void run_worker(void* opaque, int worker) {
  Run& run = *static_cast<Run*>(opaque);
  const DefaultFloatEnvironment environment;
  run.task(run.state, worker);
  run.ran.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void DefaultModeExecutor::run(int workers, Task task, void* state) {
  Run run{task, state};
  inner_.run(workers, run_worker, &run);
  const int ran = run.ran.load(std::memory_order_relaxed);
  if (ran == workers || expected_ > 0) return;
  expected_ = workers;
  ran_ = ran;
}

Status DefaultModeExecutor::status(const char* where) const {
  if (expected_ == 0) return {};
  return invalid(where, name_, " had run ", ran_, " of ", expected_,
                 " workers when its run() returned, expected all; outputs may be incomplete");
}

}  // namespace regard

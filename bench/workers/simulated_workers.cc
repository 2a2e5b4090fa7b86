#include "bench/workers/simulated_workers.h"

#include <time.h>

#include <algorithm>
#include <cmath>

namespace regard::bench {
namespace {

constexpr std::size_t kStackBytes = 1 << 20;
constexpr double kTick = 1e-9;

SimulatedWorkers* active = nullptr;

}  // namespace

double thread_seconds() noexcept {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

SimulatedWorkers::SimulatedWorkers() {
  active = this;
  cpu::worker_hook.store(at_point);
}

SimulatedWorkers::~SimulatedWorkers() {
  cpu::worker_hook.store(nullptr);
  active = nullptr;
}

void SimulatedWorkers::run(int workers, Task task, void* state) {
  const double start = thread_seconds();
  task_ = task;
  state_ = state;
  workers_ = std::vector<Worker>(static_cast<std::size_t>(workers));
  while (stacks_.size() < workers_.size()) {
    stacks_.push_back(std::make_unique<char[]>(kStackBytes));
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    getcontext(&worker.context);
    worker.context.uc_stack.ss_sp = stacks_[i].get();
    worker.context.uc_stack.ss_size = kStackBytes;
    worker.context.uc_link = &scheduler_;
    makecontext(&worker.context, begin_worker, 0);
  }
  while (Worker* const worker = earliest()) {
    current_ = static_cast<int>(worker - workers_.data());
    resumed_ = thread_seconds();
    swapcontext(&scheduler_, &worker->context);
  }
  double longest = 0.0;
  for (const Worker& worker : workers_) longest = std::max(longest, worker.seconds);
  workers_.clear();
  published_.clear();
  longest_ += longest;
  inside_ += thread_seconds() - start;
}

/// The worker that goes on: null when all have ended.
SimulatedWorkers::Worker* SimulatedWorkers::earliest() {
  Worker* found = nullptr;
  for (Worker& worker : workers_) {
    if (!worker.ended && (found == nullptr || worker.seconds < found->seconds)) found = &worker;
  }
  return found;
}

void SimulatedWorkers::begin_worker() {
  SimulatedWorkers& self = *active;
  const int index = self.current_;
  self.task_(self.state_, index);
  Worker& worker = self.workers_[static_cast<std::size_t>(index)];
  worker.seconds += thread_seconds() - self.resumed_;
  worker.ended = true;
}

void SimulatedWorkers::at_point(cpu::WorkerPoint point, const std::int64_t* count,
                                std::int64_t value) {
  if (active == nullptr || active->workers_.empty()) return;
  switch (point) {
    case cpu::WorkerPoint::kTake:
    case cpu::WorkerPoint::kWait: return active->leave(point);
    case cpu::WorkerPoint::kPublish: return active->publish(count, value);
    case cpu::WorkerPoint::kReady: return active->go_on(count, value);
  }
}

void SimulatedWorkers::publish(const std::int64_t* count, std::int64_t value) {
  Worker& worker = workers_[static_cast<std::size_t>(current_)];
  worker.seconds += thread_seconds() - resumed_;
  std::vector<Published>& times = published_[count];
  // Set to less than before: another head's. Added to by workers that are ahead: as late as those.
  if (!times.empty() && value < times.back().value) times.clear();
  const double min = times.empty() ? 0.0 : times.back().seconds;
  if (times.empty() || value > times.back().value) {
    times.push_back({value, std::max(worker.seconds, min)});
  }
  resumed_ = thread_seconds();
}

void SimulatedWorkers::go_on(const std::int64_t* count, std::int64_t value) {
  Worker& worker = workers_[static_cast<std::size_t>(current_)];
  worker.seconds += thread_seconds() - resumed_;
  const auto by_value = [](const Published& p, std::int64_t v) { return p.value < v; };
  const std::vector<Published>& times = published_[count];
  const auto found = std::lower_bound(times.begin(), times.end(), value, by_value);
  if (found != times.end()) worker.seconds = std::max(worker.seconds, found->seconds);
  resumed_ = thread_seconds();
}

void SimulatedWorkers::leave(cpu::WorkerPoint point) {
  Worker& worker = workers_[static_cast<std::size_t>(current_)];
  worker.seconds += thread_seconds() - resumed_;
  worker.waits = point == cpu::WorkerPoint::kWait;
  if (worker.waits) {
    // What it waits for comes from a worker that computes: none does before the earliest of those.
    double next = HUGE_VAL;
    for (const Worker& other : workers_) {
      if (!other.ended && !other.waits) next = std::min(next, other.seconds);
    }
    if (next == HUGE_VAL) next = worker.seconds;
    worker.seconds = std::max(worker.seconds, next) + kTick;
  }
  Worker* const next = earliest();
  if (next != &worker) {
    current_ = static_cast<int>(next - workers_.data());
    resumed_ = thread_seconds();
    swapcontext(&worker.context, &next->context);
  }
  resumed_ = thread_seconds();
}

}  // namespace regard::bench

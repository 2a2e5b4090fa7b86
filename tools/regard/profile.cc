#include "tools/regard/profile.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <set>
#include <thread>

#include "tools/regard/timing.h"

namespace regard::cli {
namespace {

/// Another executor with a clock round every worker.
class TimingExecutor final : public Executor {
 public:
  struct Worker {
    double seconds = 0.0;  // of all runs since reset()
    std::thread::id thread;
  };

  explicit TimingExecutor(Executor& inner) : inner_(inner) {}

  void reset() {
    workers_.clear();
    begin_ = end_ = 0.0;
  }

  void run(int workers, Task task, void* state) override {
    if (workers_.empty()) begin_ = now_seconds();
    workers_.resize(std::max(workers_.size(), static_cast<std::size_t>(std::max(workers, 0))));
    Run timed{this, task, state};
    inner_.run(workers, &TimingExecutor::run_worker, &timed);
    end_ = now_seconds();
  }

  const std::vector<Worker>& workers() const { return workers_; }
  /// From the first run's start to the last one's end.
  double seconds() const { return end_ - begin_; }

 private:
  struct Run {
    TimingExecutor* self;
    Task task;
    void* state;
  };

  static void run_worker(void* opaque, int index) {
    const Run& run = *static_cast<Run*>(opaque);
    Worker& worker = run.self->workers_[static_cast<std::size_t>(index)];
    const double start = now_seconds();
    run.task(run.state, index);
    worker.seconds += now_seconds() - start;
    worker.thread = std::this_thread::get_id();
  }

  Executor& inner_;
  std::vector<Worker> workers_;
  double begin_ = 0.0, end_ = 0.0;
};

/// The figures of each call, before medians are taken of them.
struct Samples {
  std::vector<double> call, describe, plan, prepare, execute, imbalance, busy;
  std::vector<std::vector<double>> workers;  // [worker][call]
  int threads = 1;

  void add_workers(const TimingExecutor& executor) {
    std::set<std::thread::id> seen;
    double longest = 0.0, sum = 0.0;
    workers.resize(std::max(workers.size(), executor.workers().size()));
    for (std::size_t i = 0; i < executor.workers().size(); ++i) {
      const TimingExecutor::Worker& worker = executor.workers()[i];
      workers[i].push_back(worker.seconds);
      seen.insert(worker.thread);
      longest = std::max(longest, worker.seconds);
      sum += worker.seconds;
    }
    const auto count = static_cast<double>(executor.workers().size());
    threads = std::max(threads, static_cast<int>(seen.size()));
    if (sum <= 0.0 || executor.seconds() <= 0.0) return;  // shorter than the clock's step
    imbalance.push_back(longest * count / sum);
    busy.push_back(sum / (count * executor.seconds()));
  }

  Profile medians() const {
    Profile profile;
    profile.calls = static_cast<std::int64_t>(call.size());
    profile.call = median(call);
    profile.describe = median(describe);
    profile.plan = median(plan);
    if (!prepare.empty()) profile.prepare = std::max(0.0, median(prepare));
    profile.execute = median(execute);
    for (const std::vector<double>& worker : workers) profile.workers.push_back(median(worker));
    if (!imbalance.empty()) profile.imbalance = median(imbalance);
    if (!busy.empty()) profile.busy = median(busy);
    profile.threads = threads;
    return profile;
  }
};

/// One call, and its first two steps by themselves, which are the same work. They come twice: the
/// first time brings back what the last call's keys and values drove out of the caches, so that
/// both the timed steps and those inside of the call find it there.
Status sample(Context& context, const AttentionRequest& request, const Policy& policy,
              TimingExecutor& executor, Samples* samples) {
  double start = 0.0, described = 0.0, planned = 0.0;
  for (int i = 0; i < 2; ++i) {
    start = now_seconds();
    const Expected<AttentionParams> params = describe(request);
    described = now_seconds();
    if (!params) return params.status();
    const Expected<Plan> made = plan(context, *params, policy);
    planned = now_seconds();
    if (!made) return made.status();
  }

  Launch launch;
  launch.executor = &executor;
  executor.reset();
  const double begin = now_seconds();
  if (Status status = attention(context, request, policy, launch); !status) return status;
  const double call = now_seconds() - begin;

  const double before = planned - start;
  samples->call.push_back(call);
  samples->describe.push_back(described - start);
  samples->plan.push_back(planned - described);
  if (executor.workers().empty()) {
    samples->execute.push_back(std::max(0.0, call - before));
  } else {
    samples->execute.push_back(executor.seconds());
    samples->prepare.push_back(call - before - executor.seconds());
    samples->add_workers(executor);
  }
  return {};
}

}  // namespace

Expected<Profile> profile_on_backend(Context& context, const RunInput& input, const BackendRun& run,
                                     const Policy& policy, const Timing& timing) {
  const Policy narrowed = narrowed_to(policy, run.backend);
  const AttentionRequest request = input.with(run.outputs);
  TimingExecutor executor(context.executor());
  Samples warm_up, samples;
  if (Status status = sample(context, request, narrowed, executor, &warm_up); !status) {
    return status;
  }
  const double begin = now_seconds();
  for (std::int64_t i = 0; i < timing.max_runs(); ++i) {
    if (timing.is_enough(i, now_seconds() - begin)) break;
    if (Status status = sample(context, request, narrowed, executor, &samples); !status) {
      return status;
    }
    if (timing.after_each != nullptr) timing.after_each(timing.user);
  }
  return samples.medians();
}

}  // namespace regard::cli

#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "regard/request.h"

namespace regard::test {

/// Runs every worker on a thread of its own, all released at once, and says how many workers had
/// work to do. Workers take tasks as they come, so how many is up to the machine: ask more than
/// once.
class CountingExecutor final : public Executor {
 public:
  void run(int workers, Task task, void* state) override;

  int runs() const { return runs_; }
  int max_workers() const { return max_workers_; }
  /// Workers of the last run that computed for a twentieth of what the busiest did, or longer.
  int workers_with_work() const { return workers_with_work_; }

 private:
  int runs_ = 0, max_workers_ = 0, workers_with_work_ = 0;
};

/// Runs workers one after another on the calling thread.
class SerialExecutor final : public Executor {
 public:
  void run(int workers, Task task, void* state) override {
    for (int worker = 0; worker < workers; ++worker) task(state, worker);
  }
};

/// A team of two threads of its own; whoever is free takes the next worker, as OpenMP's dynamic
/// schedule gives them out.
class TeamExecutor final : public Executor {
 public:
  void run(int workers, Task task, void* state) override;
};

/// Runs workers one after another in descending order.
class BackwardsExecutor final : public Executor {
 public:
  void run(int workers, Task task, void* state) override {
    for (int worker = workers - 1; worker >= 0; --worker) task(state, worker);
  }
};

}  // namespace regard::test

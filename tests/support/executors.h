#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "regard/request.h"

namespace regard::test {

/// Runs every slot on a thread of its own, all released at once, and says how many slots had work
/// to do. Slots take tasks as they come, so how many is up to the machine: ask more than once.
class CountingExecutor final : public Executor {
 public:
  void run(int slots, Task task, void* state) override;

  int runs() const { return runs_; }
  int most_slots() const { return most_slots_; }
  /// Slots of the last run that computed for a twentieth of what the busiest did, or longer.
  int slots_with_work() const { return slots_with_work_; }

 private:
  int runs_ = 0, most_slots_ = 0, slots_with_work_ = 0;
};

/// Runs slots one after another on the calling thread.
class SerialExecutor final : public Executor {
 public:
  void run(int slots, Task task, void* state) override {
    for (int slot = 0; slot < slots; ++slot) task(state, slot);
  }
};

/// A team of two threads of its own; whoever is free takes the next slot, as OpenMP's dynamic
/// schedule gives them out.
class TeamExecutor final : public Executor {
 public:
  void run(int slots, Task task, void* state) override;
};

/// Runs slots one after another in descending order.
class BackwardsExecutor final : public Executor {
 public:
  void run(int slots, Task task, void* state) override {
    for (int slot = slots - 1; slot >= 0; --slot) task(state, slot);
  }
};

}  // namespace regard::test

#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cpu/threads/worker_hook.h"
#include "regard/request.h"

namespace regard::bench {

/// Runs workers on one thread as if each had a core of its own: whichever is earliest in simulated
/// time goes on, until it takes work or waits. A worker's time is what it computed; one that waits
/// follows the earliest of the others, and goes on no earlier than what it waited for was there.
/// Memory bandwidth and caches that cores share are not
/// simulated. One such executor at a time, on one thread.
class SimulatedWorkers final : public Executor {
 public:
  SimulatedWorkers();
  ~SimulatedWorkers() override;

  void run(int workers, Task task, void* state) override;

  /// Of all runs since reset(): the longest worker's time of each, and what the thread spent within
  /// run(), the simulation included.
  double longest_seconds() const noexcept { return longest_; }
  double inside_seconds() const noexcept { return inside_; }
  void reset() noexcept { longest_ = inside_ = 0.0; }

 private:
  struct Worker {
    ucontext_t context;
    double seconds = 0.0;
    bool waits = false;
    bool ended = false;
  };
  struct Published {
    std::int64_t value;
    double seconds;
  };

  static void begin_worker();
  static void at_point(cpu::WorkerPoint point, const std::int64_t* count, std::int64_t value);
  void leave(cpu::WorkerPoint point);
  void publish(const std::int64_t* count, std::int64_t value);
  void go_on(const std::int64_t* count, std::int64_t value);
  Worker* earliest();

  std::vector<std::unique_ptr<char[]>> stacks_;  // kept between runs
  std::vector<Worker> workers_;
  ucontext_t scheduler_;
  std::unordered_map<const std::int64_t*, std::vector<Published>> published_;  // of this run
  int current_ = 0;
  double resumed_ = 0.0;
  Task task_ = nullptr;
  void* state_ = nullptr;
  double longest_ = 0.0, inside_ = 0.0;
};

/// CPU time of this thread.
double thread_seconds() noexcept;

}  // namespace regard::bench

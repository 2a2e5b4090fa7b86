// A program that already computes with OpenMP lends its team to regard: one set of threads, not two
// that compete for the same cores.

#include <omp.h>

#include <atomic>
#include <cstdio>

#include "examples/same_bits.h"

namespace {

// Called by several of the program's threads at once, each gets a team of its own; called within a
// parallel region, OpenMP runs the loop on the calling thread. Both are within the contract.
class OpenMpExecutor final : public regard::Executor {
 public:
  void run(int workers, Task task, void* state) override {
    runs_.fetch_add(1, std::memory_order_relaxed);
#pragma omp parallel for schedule(dynamic, 1)
    for (int worker = 0; worker < workers; ++worker) task(state, worker);
  }

  int runs() const { return runs_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> runs_{0};
};

}  // namespace

int main() {
  OpenMpExecutor executor;
  const bool same = example::gives_the_same_bits(executor);
  std::printf("%d runs on OpenMP, at most %d threads\n", executor.runs(), omp_get_max_threads());
  return same && executor.runs() > 0 ? 0 : 1;
}

#include "openmp_team.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

// PyTorch's threads spin for milliseconds while they wait for its next operator. Threads of our own
// beside them have half a core each: attention in MiniLM took 1.4 times as long on two cores. The
// runtime is the one that PyTorch has loaded; linking it would make a second one.

namespace regard::python {
namespace {

/// A parallel region of libgomp: what a compiler makes of `#pragma omp parallel`.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

Parallel loaded_parallel() noexcept {
  void* const library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel"));
}

class OpenMpTeam final : public Executor {
 public:
  explicit OpenMpTeam(Parallel parallel) : parallel_(parallel) {}

  void run(int workers, Task task, void* state) override {
    Run run{task, state, workers};
    constexpr unsigned kUsualTeam = 0;  // another size would make the runtime build a team anew
    if (workers > 1) {
      parallel_(take_workers, &run, kUsualTeam, 0);
    } else {
      take_workers(&run);
    }
  }

 private:
  struct Run {
    Task task;
    void* state;
    int workers;
    std::atomic<int> next{0};
  };

  /// Whatever the team's size, each worker once.
  static void take_workers(void* opaque) noexcept {
    Run& run = *static_cast<Run*>(opaque);
    for (;;) {
      const int worker = run.next.fetch_add(1, std::memory_order_relaxed);
      if (worker >= run.workers) return;
      run.task(run.state, worker);
    }
  }

  const Parallel parallel_;
};

// From the import on: the parent's team may be PyTorch's alone so far.
std::atomic<bool> is_forked{false};
const bool watches_forks =
    pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); }) == 0;

}  // namespace

Executor* openmp_team() noexcept {
  static const Parallel parallel = watches_forks ? loaded_parallel() : nullptr;
  if (parallel == nullptr || is_forked.load(std::memory_order_relaxed)) return nullptr;
  static OpenMpTeam team(parallel);
  return &team;
}

}  // namespace regard::python

#include "tests/support/executors.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <thread>

namespace regard::test {
namespace {

std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * std::int64_t{1000000000} + now.tv_nsec;
}

}  // namespace

void CountingExecutor::run(int workers, Task task, void* state) {
  std::vector<std::int64_t> spent(static_cast<std::size_t>(workers));
  std::vector<std::thread> threads;
  std::atomic<int> ready{0};
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      ready.fetch_add(1);
      while (ready.load() < workers) std::this_thread::yield();
      const std::int64_t start = thread_cpu_ns();
      task(state, worker);
      spent[static_cast<std::size_t>(worker)] = thread_cpu_ns() - start;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ++runs_;
  max_workers_ = std::max(max_workers_, workers);
  const std::int64_t busiest = *std::max_element(spent.begin(), spent.end());
  workers_with_work_ = static_cast<int>(std::count_if(
      spent.begin(), spent.end(), [&](std::int64_t ns) { return ns * 20 >= busiest; }));
}

void TeamExecutor::run(int workers, Task task, void* state) {
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int worker = next++; worker < workers; worker = next++) task(state, worker);
  };
  std::thread other(work), another(work);
  other.join();
  another.join();
}

}  // namespace regard::test

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cpu/threads/thread_pool.h"
#include "regard/attention.h"

namespace regard {
namespace {

struct Seen {
  std::mutex mutex;
  std::vector<int> counts;
  std::set<std::thread::id> threads;
  bool wait_for_other = false;

  explicit Seen(int workers) : counts(static_cast<std::size_t>(workers)) {}
  static void task(void* state, int worker) {
    Seen& seen = *static_cast<Seen*>(state);
    {
      const std::lock_guard lock(seen.mutex);
      ++seen.counts[static_cast<std::size_t>(worker)];
      seen.threads.insert(std::this_thread::get_id());
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (seen.wait_for_other && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
      const std::lock_guard lock(seen.mutex);
      if (seen.threads.size() > 1) return;
    }
  }
  void expect_each_once() const {
    for (const int count : counts) EXPECT_EQ(count, 1);
  }
};

void run(Executor& pool, Seen* seen) {
  pool.run(static_cast<int>(seen->counts.size()), &Seen::task, seen);
}

TEST(ThreadPool, EachWorkerRunsOnce) {
  for (const int concurrency : {1, 2, 3, 7}) {
    const auto pool = make_thread_pool(concurrency);
    for (int round = 0; round < 200; ++round) {
      for (const int workers : {0, 1, 2, 7, 40}) {
        Seen seen(workers);
        run(*pool, &seen);
        seen.expect_each_once();
        EXPECT_LE(seen.threads.size(), static_cast<std::size_t>(concurrency));
      }
    }
  }
}

TEST(ThreadPool, UsesOtherThreads) {
  const auto pool = make_thread_pool(2);
  Seen seen(2);
  seen.wait_for_other = true;
  run(*pool, &seen);
  EXPECT_EQ(seen.threads.size(), 2u);
}

TEST(ThreadPool, OneWorkerStaysOnTheCaller) {
  const auto pool = make_thread_pool(4);
  Seen seen(1);
  run(*pool, &seen);
  EXPECT_EQ(seen.threads, std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(ThreadPool, NestedRunsStayOnTheirThread) {
  struct Outer {
    Executor* pool;
    std::atomic<int> inner{0};
    static void task(void* state, int) {
      Outer& outer = *static_cast<Outer*>(state);
      Seen seen(5);
      run(*outer.pool, &seen);
      seen.expect_each_once();
      EXPECT_EQ(seen.threads, std::set<std::thread::id>{std::this_thread::get_id()});
      outer.inner += 5;
    }
  };
  const auto pool = make_thread_pool(3);
  Outer outer{pool.get(), {}};
  pool->run(6, &Outer::task, &outer);
  EXPECT_EQ(outer.inner, 30);
}

TEST(ThreadPool, ARunBesideAnotherHasTheIdleThreads) {
  struct Outer {
    Executor* pool;
    std::atomic<bool> done{false};
    static void task(void* state, int worker) {
      Outer& outer = *static_cast<Outer*>(state);
      if (worker != 0) return;
      std::thread other([&] {
        Seen seen(2);
        seen.wait_for_other = true;
        run(*outer.pool, &seen);
        seen.expect_each_once();
        EXPECT_EQ(seen.threads.size(), 2u);
        outer.done = true;
      });
      other.join();
    }
  };
  const auto pool = make_thread_pool(3);
  Outer outer{pool.get(), {}};
  pool->run(2, &Outer::task, &outer);
  EXPECT_TRUE(outer.done);
}

TEST(ThreadPool, ConcurrentRuns) {
  for (const int count : {4, 80}) {  // more than have a place
    const auto pool = make_thread_pool(3);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < count; ++caller) {
      callers.emplace_back([&] {
        for (int round = 0; round < 1200 / count; ++round) {
          Seen seen(5);
          run(*pool, &seen);
          seen.expect_each_once();
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
}

TEST(ThreadPool, ResizingWhileRunsGo) {
  const auto pool = make_thread_pool(3);
  std::atomic<bool> done{false};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 400; ++round) {
        Seen seen(6);
        run(*pool, &seen);
        seen.expect_each_once();
      }
    });
  }
  std::thread resizer([&] {
    for (int n = 0; !done; n = (n * 5 + 3) % 7) resize_pool(*pool, 1 + n);
  });
  for (std::thread& caller : callers) caller.join();
  done = true;
  resizer.join();
  resize_pool(*pool, 2);
  Seen seen(2);
  seen.wait_for_other = true;
  run(*pool, &seen);
  EXPECT_EQ(seen.threads.size(), 2u);
}

// A resize that waited for workers could not return here: the worker waits for the resize.
TEST(ThreadPool, ResizingDoesNotWaitForWorkers) {
  struct Waiting {
    std::atomic<int> inside{0};
    std::atomic<bool> resized{false};
    static void task(void* state, int) {
      Waiting& waiting = *static_cast<Waiting*>(state);
      ++waiting.inside;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!waiting.resized && std::chrono::steady_clock::now() < limit) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(waiting.resized);
    }
  };
  const auto pool = make_thread_pool(3);
  Waiting waiting;
  std::thread resizer([&] {
    while (waiting.inside < 2) std::this_thread::yield();
    resize_pool(*pool, 1);
    resize_pool(*pool, 3);
    waiting.resized = true;
  });
  pool->run(3, &Waiting::task, &waiting);
  resizer.join();
}

TEST(ThreadPool, AWorkerMayResize) {
  struct Resizing {
    Executor* pool;
    std::atomic<int> runs{0};
    static void task(void* state, int worker) {
      Resizing& resizing = *static_cast<Resizing*>(state);
      resize_pool(*resizing.pool, 1 + worker % 4);
      ++resizing.runs;
    }
  };
  const auto pool = make_thread_pool(4);
  Resizing resizing{pool.get(), {}};
  pool->run(40, &Resizing::task, &resizing);
  EXPECT_EQ(resizing.runs, 40);
}

TEST(ThreadPool, SleepingThreadsWakeUp) {
  const auto pool = make_thread_pool(2);
  for (int round = 0; round < 3; ++round) {
    Seen seen(2);
    seen.wait_for_other = true;
    run(*pool, &seen);
    EXPECT_EQ(seen.threads.size(), 2u);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
}

/// CPU time of a clock, in seconds.
double cpu_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A thread that spins has at least a tenth of a processor, however many others want it.
constexpr std::chrono::milliseconds kQuiet(300);
constexpr double kSpinningSeconds = 0.03;

TEST(ThreadPool, IdleThreadsSleep) {
  const auto pool = make_thread_pool(4);
  Seen seen(4);
  seen.wait_for_other = true;
  run(*pool, &seen);
  const double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(kQuiet);
  EXPECT_LT(cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before, kSpinningSeconds);
}

TEST(ThreadPool, TheCallerSleepsWhileItWaits) {
  struct Waiting {
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> other_started{false};
    double before = 0.0;
    static void task(void* state, int) {
      Waiting& waiting = *static_cast<Waiting*>(state);
      if (std::this_thread::get_id() != waiting.caller) {
        waiting.other_started = true;
        std::this_thread::sleep_for(kQuiet);
        return;
      }
      while (!waiting.other_started) std::this_thread::yield();
      waiting.before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    }
  };
  const auto pool = make_thread_pool(2);
  Waiting waiting;
  pool->run(2, &Waiting::task, &waiting);
  EXPECT_LT(cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - waiting.before, kSpinningSeconds);
}

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)  // which starts a thread of its own
std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(ThreadPool, ThreadsStartWithTheFirstRunOfSeveralWorkers) {
  const std::ptrdiff_t before = threads_of_this_process();
  const auto pool = make_thread_pool(3);
  Seen one(1), two(2);
  run(*pool, &one);
  EXPECT_EQ(threads_of_this_process(), before);
  run(*pool, &two);
  EXPECT_EQ(threads_of_this_process(), before + 2);
}

TEST(ThreadPool, ResizingStartsAndEndsThreads) {
  const std::ptrdiff_t before = threads_of_this_process();
  const auto pool = make_thread_pool(1);
  for (const int concurrency : {3, 5, 5, 2, 1, 4, 1}) {
    resize_pool(*pool, concurrency);
    Seen seen(8);
    seen.wait_for_other = concurrency > 1;
    run(*pool, &seen);
    seen.expect_each_once();
    EXPECT_LE(seen.threads.size(), static_cast<std::size_t>(concurrency));
    const std::ptrdiff_t expected = before + concurrency - 1;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (threads_of_this_process() > expected && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();  // a surplus thread is about to end
    }
    EXPECT_EQ(threads_of_this_process(), expected);
  }
}

TEST(ThreadPool, AContextStartsThreadsWithTheFirstPlanOfSeveralWorkers) {
  const std::ptrdiff_t before = threads_of_this_process();
  Env env = read_env();
  env.concurrency = 3;
  Context context(env);
  const auto workers_of = [&](const char* text) {
    const Expected<Plan> made = plan(context, parse_case(text)->params);
    return made.ok() ? made->kernel().workers : 0;
  };
  EXPECT_EQ(workers_of("b1 hq1 sq1 d64 f32"), 1);
  EXPECT_EQ(threads_of_this_process(), before);
  EXPECT_EQ(workers_of("b2 hq8 sq512 d64 f32"), 3);
  EXPECT_EQ(threads_of_this_process(), before + 2);
}
#endif

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow threads that start in a forked child
int in_child(const std::unique_ptr<Executor>& pool) {
  Seen before(4);
  run(*pool, &before);
  if (before.threads.size() != 1) return 1;
  for (const int count : before.counts) {
    if (count != 1) return 2;
  }
  resize_pool(*pool, 1);
  if (start_threads(*pool)) return 5;
  resize_pool(*pool, 2);
  if (!start_threads(*pool)) return 3;
  Seen after(2);
  after.wait_for_other = true;
  run(*pool, &after);
  return after.threads.size() == 2 ? 0 : 4;
}

TEST(ThreadPool, ForkedChildRunsInlineUntilThreadsAreStarted) {
  auto pool = make_thread_pool(2);
  Seen seen(2);
  seen.wait_for_other = true;
  run(*pool, &seen);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    const int code = in_child(pool);
    pool.reset();
    _exit(code);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Seen again(2);  // the parent's threads are as they were
  again.wait_for_other = true;
  run(*pool, &again);
  EXPECT_EQ(again.threads.size(), 2u);
}
#endif

TEST(ThreadPool, StartThreads) {
  const auto pool = make_thread_pool(2);
  EXPECT_TRUE(start_threads(*pool));
  EXPECT_TRUE(start_threads(*pool));
  const auto single = make_thread_pool(1);
  EXPECT_FALSE(start_threads(*single));
  class Other final : public Executor {
    void run(int, Task, void*) override {}
  } other;
  EXPECT_FALSE(start_threads(other));
}

}  // namespace
}  // namespace regard

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"

namespace regard {
namespace {

struct Seen {
  std::mutex mutex;
  std::vector<int> counts;
  std::set<std::thread::id> threads;
  bool wait_for_other = false;

  explicit Seen(int slots) : counts(static_cast<std::size_t>(slots)) {}
  static void task(void* state, int slot) {
    Seen& seen = *static_cast<Seen*>(state);
    {
      const std::lock_guard lock(seen.mutex);
      ++seen.counts[static_cast<std::size_t>(slot)];
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

TEST(ThreadPool, EachSlotRunsOnce) {
  for (const int concurrency : {1, 2, 3, 7}) {
    const auto pool = make_thread_pool(concurrency);
    for (int round = 0; round < 200; ++round) {
      for (const int slots : {0, 1, 2, 7, 40}) {
        Seen seen(slots);
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

TEST(ThreadPool, OneSlotStaysOnTheCaller) {
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

TEST(ThreadPool, ConcurrentRuns) {
  const auto pool = make_thread_pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        Seen seen(5);
        run(*pool, &seen);
        seen.expect_each_once();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
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

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow threads that start in a forked child
int in_child(const std::unique_ptr<Executor>& pool) {
  Seen before(4);
  run(*pool, &before);
  if (before.threads.size() != 1) return 1;
  for (const int count : before.counts) {
    if (count != 1) return 2;
  }
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

#include "cpu/threads/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/threads/leave_cpu.h"
#include "cpu/threads/yield_for.h"

namespace regard {
namespace {

using Task = Executor::Task;

std::atomic<unsigned> fork_count{0};  // forks between the program's first process and this one

void count_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

void run_inline(int workers, Task task, void* state) noexcept {
  for (int worker = 0; worker < workers; ++worker) task(state, worker);
}

// Of the caller's thread, which waits for the end of a task. Asleep, it often wakes on the CPU of
// the thread that ends the run, and both stay there: the next calls take twice as long.
constexpr std::chrono::milliseconds kYieldTimeOfCaller{2};

class Threads;
thread_local const Threads* threads_of_worker = nullptr;  // whose worker this thread is in

/// One caller's run. A cache line each: callers count their workers beside one another.
struct alignas(64) Run {
  std::atomic<bool> busy{false};
  std::atomic<std::uint64_t> ticket{0};  // epoch << 32 | workers left
  std::atomic<Task> task{nullptr};
  std::atomic<void*> state{nullptr};
  std::atomic<int> unfinished{0};
  std::atomic<int> cpu{-1};  // of the caller, when it began
  std::condition_variable done;

  bool finished() const noexcept { return unfinished.load(std::memory_order_acquire) == 0; }
};

/// The threads of one process, which serve the runs of all callers. A forked child leaves its
/// parent's as they are and makes new ones.
class Threads {
 public:
  explicit Threads(int count) : born_(fork_count.load(std::memory_order_relaxed)), wanted_(count) {}

  ~Threads() {
    const std::lock_guard lock(start_mutex_);
    set_wanted(0);
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  bool of_this_process() const noexcept {
    return born_ == fork_count.load(std::memory_order_relaxed);
  }

  /// Starts every thread that the system gives. True when at least one runs.
  bool start() noexcept {
    if (started_.load(std::memory_order_acquire)) return running_.load() > 0;
    const std::lock_guard lock(start_mutex_);
    if (started_.load(std::memory_order_relaxed)) return running_.load() > 0;
    const int wanted = wanted_.load();
    int running = 0;
    try {
      for (; running < wanted; ++running) start_thread(running);
    } catch (const std::exception&) {
    }
    running_.store(running);
    started_.store(true, std::memory_order_release);
    return running > 0;
  }

  /// More threads start with the next run. Threads that are too many end after their current
  /// worker; nothing waits for that, so a worker or a signal handler within one may resize, too.
  /// The count is read under the lock: of several callers, the last to write it decides.
  void resize(const std::atomic<int>& count) {
    const std::lock_guard lock(start_mutex_);
    set_wanted(count.load());
    started_.store(false, std::memory_order_release);
  }

  /// Runs the workers on the caller's thread and on those that are idle; false, having run none,
  /// for a nested run, or when there is no thread or no place for another caller.
  bool run(int workers, Task task, void* state) noexcept {
    if (threads_of_worker == this || !start()) return false;
    const int place = acquire_place();
    if (place < 0) return false;
    Run& run = runs_[place];
    run.task.store(task, std::memory_order_relaxed);
    run.state.store(state, std::memory_order_relaxed);
    run.unfinished.store(workers, std::memory_order_relaxed);
    run.cpu.store(cpu::current_cpu(), std::memory_order_relaxed);
    const std::uint64_t epoch = (run.ticket.load(std::memory_order_relaxed) >> 32) + 1;
    // First the bit: the thread that takes the last worker clears it.
    open_.fetch_or(bit_of(place), std::memory_order_relaxed);
    run.ticket.store(epoch << 32 | static_cast<std::uint32_t>(workers), std::memory_order_release);
    wake(workers - 1);
    while (take_one(place)) {
    }
    wait_for(run);
    run.busy.store(false, std::memory_order_release);
    return true;
  }

 private:
  static constexpr int kMaxRuns = 64;  // callers at once that share the threads

  static constexpr std::uint64_t bit_of(int place) noexcept { return std::uint64_t{1} << place; }

  bool has_work() const noexcept { return open_.load(std::memory_order_acquire) != 0; }
  bool is_wanted(int index) const noexcept {
    return index < wanted_.load(std::memory_order_relaxed);
  }

  void set_wanted(int count) {
    {
      const std::lock_guard lock(mutex_);
      wanted_.store(count, std::memory_order_relaxed);
    }
    work_.notify_all();
  }

  /// Starts the thread of an index, unless it runs. The caller holds start_mutex_.
  void start_thread(int index) {
    const auto i = static_cast<std::size_t>(index);
    if (i >= threads_.size()) threads_.resize(i + 1);
    {
      const std::lock_guard lock(mutex_);
      if (serving_.size() <= i) serving_.resize(i + 1);
      if (serving_[i]) return;  // if it was to end, it is wanted again
    }
    if (threads_[i].joinable()) threads_[i].join();  // it ended
    threads_[i] = std::thread([this, index] { serve(index); });
    const std::lock_guard lock(mutex_);
    serving_[i] = true;
  }

  int acquire_place() noexcept {
    for (int place = 0; place < kMaxRuns; ++place) {
      if (!runs_[place].busy.exchange(true, std::memory_order_acquire)) return place;
    }
    return -1;
  }

  void wake(int wanted) {
    int asleep = 0;
    {
      // A thread goes to sleep under the mutex, after a last look at open_.
      const std::lock_guard lock(mutex_);
      asleep = asleep_;
    }
    if (wanted >= asleep) {
      work_.notify_all();
    } else {
      for (int i = 0; i < wanted; ++i) work_.notify_one();
    }
  }

  void wait_for(Run& run) noexcept {
    if (cpu::yield_for(kYieldTimeOfCaller, [&run] { return run.finished(); })) return;
    std::unique_lock lock(mutex_);
    run.done.wait(lock, [&run] { return run.finished(); });
  }

  /// Executes one worker; false when none is left. The ticket is (epoch, workers left), so a thread
  /// that was late for one run cannot take a worker of it: while workers of an epoch are left, task
  /// and state are that epoch's, and the exchange fails when they are not.
  bool take_one(int place) noexcept {
    Run& run = runs_[place];
    std::uint64_t ticket = run.ticket.load(std::memory_order_acquire);
    for (;;) {
      const auto left = static_cast<std::uint32_t>(ticket);
      if (left == 0) return false;
      const Task task = run.task.load(std::memory_order_relaxed);
      void* const state = run.state.load(std::memory_order_relaxed);
      if (!run.ticket.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire)) {
        continue;
      }
      // Before the worker runs: the place may be another run's as soon as all workers have ended.
      if (left == 1) open_.fetch_and(~bit_of(place), std::memory_order_relaxed);
      const Threads* const outer = std::exchange(threads_of_worker, this);
      task(state, static_cast<int>(left - 1));
      threads_of_worker = outer;
      if (run.unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex_);
        run.done.notify_one();
      }
      return true;
    }
  }

  /// Executes a worker of the next run after `place` that has one left; where that was. Linux may
  /// wake a thread on its waker's CPU and leave it there, with another CPU idle: it leaves.
  int take_from_any(int place) noexcept {
    for (int i = 1; i <= kMaxRuns; ++i) {
      const int next = (place + i) % kMaxRuns;
      if ((open_.load(std::memory_order_acquire) & bit_of(next)) == 0) continue;
      cpu::leave_cpu(runs_[next].cpu.load(std::memory_order_relaxed), running_.load() + 1);
      if (take_one(next)) return next;
    }
    return place;
  }

  /// One thread, until it is not wanted any more.
  void serve(int index) noexcept {
    int place = 0;  // of the run served last: the next one's turn comes first
    for (;;) {
      while (is_wanted(index) && has_work()) place = take_from_any(place);
      const bool found = cpu::yield_for(cpu::kYieldTime, [this] { return has_work(); });
      if (is_wanted(index) && found) continue;
      std::unique_lock lock(mutex_);
      ++asleep_;
      work_.wait(lock, [this, index] { return !is_wanted(index) || has_work(); });
      --asleep_;
      if (is_wanted(index)) continue;
      serving_[static_cast<std::size_t>(index)] = false;
      return;
    }
  }

  const unsigned born_;
  std::atomic<int> wanted_;  // changed under mutex_
  std::mutex start_mutex_;
  std::vector<std::thread> threads_;  // guarded by start_mutex_
  std::atomic<int> running_{0};
  std::atomic<bool> started_{false};    // as many as are wanted, or as the system gave
  std::atomic<std::uint64_t> open_{0};  // the places whose runs have workers left
  Run runs_[kMaxRuns];
  std::mutex mutex_;
  std::condition_variable work_;
  int asleep_ = 0;             // guarded by mutex_
  std::vector<bool> serving_;  // by index: false once the thread has left; guarded by mutex_
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int concurrency) : helpers_(std::max(concurrency, 1) - 1) {
    count_forks();
    threads_.store(new Threads(helpers_));
  }

  ~ThreadPool() override {
    Threads* const threads = threads_.load();
    // A parent's threads do not exist here: they can be neither joined nor destroyed.
    if (threads->of_this_process()) delete threads;
  }

  void run(int workers, Task task, void* state) override {
    Threads* const threads = threads_.load(std::memory_order_acquire);
    const bool shares = workers > 1 && threads->of_this_process();
    if (!shares || !threads->run(workers, task, state)) run_inline(workers, task, state);
  }

  bool start() noexcept {
    Threads* threads = threads_.load(std::memory_order_acquire);
    if (!threads->of_this_process()) threads = replace(threads);
    return threads != nullptr && threads->start();
  }

  void resize(int concurrency) {
    helpers_.store(std::max(concurrency, 1) - 1);
    Threads* const threads = threads_.load();
    if (threads->of_this_process()) threads->resize(helpers_);
  }

 private:
  /// New threads in place of a parent's, which stay allocated: their mutex may be locked for ever.
  Threads* replace(Threads* old) noexcept {
    try {
      auto fresh = std::make_unique<Threads>(helpers_);
      if (!threads_.compare_exchange_strong(old, fresh.get())) return old;  // another was first
      fresh->resize(helpers_);  // which may have changed since it was read
      return fresh.release();
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  std::atomic<int> helpers_;  // threads besides the caller's
  std::atomic<Threads*> threads_{nullptr};
};

}  // namespace

std::unique_ptr<Executor> make_thread_pool(int concurrency) {
  return std::make_unique<ThreadPool>(concurrency);
}

void resize_pool(Executor& pool, int concurrency) {
  if (auto* const own = dynamic_cast<ThreadPool*>(&pool)) own->resize(concurrency);
}

bool start_threads(Executor& pool) noexcept {
  auto* const own = dynamic_cast<ThreadPool*>(&pool);
  return own != nullptr && own->start();
}

}  // namespace regard

#include "cpu/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace regard {
namespace {

using Task = Executor::Task;

std::atomic<unsigned> fork_count{0};  // forks between the program's first process and this one

void count_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

void run_slot(Task task, void* state, int slot) noexcept { task(state, slot); }

void run_inline(int slots, Task task, void* state) {
  for (int slot = 0; slot < slots; ++slot) run_slot(task, state, slot);
}

// Yields before sleeping, some 30 microseconds on an idle core: kernels follow one another that
// closely, and a yield leaves the core to whoever else wants it, where a pause would not.
constexpr int kYields = 100;

/// The threads of one process. A forked child leaves its parent's as they are and makes new ones.
class Workers {
 public:
  explicit Workers(int count) : born_(fork_count.load(std::memory_order_relaxed)), count_(count) {}

  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool of_this_process() const noexcept {
    return born_ == fork_count.load(std::memory_order_relaxed);
  }

  /// The right to use the workers; false when somebody has it.
  bool acquire() noexcept { return !busy_.exchange(true, std::memory_order_acquire); }
  void release() noexcept { busy_.store(false, std::memory_order_release); }

  /// Every thread that can be had runs.
  bool started() const noexcept { return started_.load(std::memory_order_acquire); }

  /// Needs acquire(). True when at least one thread runs.
  bool start() noexcept {
    if (started()) return !threads_.empty();
    try {
      threads_.reserve(static_cast<std::size_t>(count_));
      while (static_cast<int>(threads_.size()) < count_) threads_.emplace_back([this] { serve(); });
    } catch (const std::exception&) {
      count_ = static_cast<int>(threads_.size());  // what the system gives is what there is
    }
    started_.store(true, std::memory_order_release);
    return !threads_.empty();
  }

  /// Needs acquire() and start().
  void run(int slots, Task task, void* state) noexcept {
    task_.store(task, std::memory_order_relaxed);
    state_.store(state, std::memory_order_relaxed);
    unfinished_.store(slots, std::memory_order_relaxed);
    const std::uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(epoch << 32 | static_cast<std::uint32_t>(slots), std::memory_order_release);
    wake(slots - 1);
    while (take_one()) {
    }
    for (int i = 0; i < kYields; ++i) {
      if (finished()) return;
      std::this_thread::yield();
    }
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return finished(); });
  }

 private:
  bool finished() const noexcept { return unfinished_.load(std::memory_order_acquire) == 0; }
  bool has_work() const noexcept {
    return static_cast<std::uint32_t>(ticket_.load(std::memory_order_acquire)) != 0;
  }

  void wake(int wanted) {
    int asleep = 0;
    {
      // Whoever decides to sleep does so under the mutex, after a last look at the ticket.
      const std::lock_guard lock(mutex_);
      asleep = asleep_;
    }
    if (wanted >= asleep) {
      work_.notify_all();
    } else {
      for (int i = 0; i < wanted; ++i) work_.notify_one();
    }
  }

  /// Executes one slot; false when none is left. The ticket is (epoch, slots left), so a thread
  /// that was late for one run cannot take a slot of it: while slots of an epoch are left, task_
  /// and state_ are that epoch's, and the exchange fails when they are not.
  bool take_one() noexcept {
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
      const auto left = static_cast<std::uint32_t>(ticket);
      if (left == 0) return false;
      const Task task = task_.load(std::memory_order_relaxed);
      void* const state = state_.load(std::memory_order_relaxed);
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire)) {
        continue;
      }
      run_slot(task, state, static_cast<int>(left - 1));
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        const std::lock_guard lock(mutex_);
        done_.notify_one();
      }
      return true;
    }
  }

  void serve() noexcept {
    for (;;) {
      while (take_one()) {
      }
      for (int i = 0; i < kYields && !has_work(); ++i) std::this_thread::yield();
      if (has_work()) continue;
      std::unique_lock lock(mutex_);
      ++asleep_;
      work_.wait(lock, [this] { return stop_ || has_work(); });
      --asleep_;
      if (stop_) return;
    }
  }

  const unsigned born_;
  int count_;
  std::vector<std::thread> threads_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> started_{false};
  std::atomic<std::uint64_t> ticket_{0};  // epoch << 32 | slots left
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> state_{nullptr};
  std::atomic<int> unfinished_{0};
  std::mutex mutex_;
  std::condition_variable work_, done_;
  int asleep_ = 0;     // guarded by mutex_
  bool stop_ = false;  // guarded by mutex_
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int concurrency) : concurrency_(concurrency) {
    count_forks();
    if (concurrency_ > 1) workers_.store(new Workers(concurrency_ - 1));
  }

  ~ThreadPool() override {
    Workers* workers = workers_.load();
    // A parent's threads do not exist here: they can be neither joined nor destroyed.
    if (workers != nullptr && workers->of_this_process()) delete workers;
  }

  void run(int slots, Task task, void* state) override {
    Workers* const workers = workers_.load(std::memory_order_acquire);
    if (slots <= 1 || workers == nullptr || !workers->of_this_process() || !workers->acquire()) {
      run_inline(slots, task, state);
      return;
    }
    if (workers->start()) {
      workers->run(slots, task, state);
    } else {
      run_inline(slots, task, state);
    }
    workers->release();
  }

  bool start() noexcept {
    Workers* workers = workers_.load(std::memory_order_acquire);
    if (workers == nullptr) return false;
    if (!workers->of_this_process()) {
      workers = replace(workers);
      if (workers == nullptr) return false;
    }
    if (workers->started() || !workers->acquire()) return true;  // or somebody runs on them
    const bool started = workers->start();
    workers->release();
    return started;
  }

 private:
  /// New workers in place of a parent's, which stay allocated: their mutex may be locked for ever.
  Workers* replace(Workers* old) noexcept {
    try {
      auto fresh = std::make_unique<Workers>(concurrency_ - 1);
      if (workers_.compare_exchange_strong(old, fresh.get(), std::memory_order_acq_rel)) {
        return fresh.release();
      }
      return old;  // another thread was first
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  const int concurrency_;
  std::atomic<Workers*> workers_{nullptr};
};

}  // namespace

std::unique_ptr<Executor> make_thread_pool(int concurrency) {
  return std::make_unique<ThreadPool>(concurrency);
}

bool start_threads(Executor& pool) noexcept {
  auto* const own = dynamic_cast<ThreadPool*>(&pool);
  return own != nullptr && own->start();
}

}  // namespace regard

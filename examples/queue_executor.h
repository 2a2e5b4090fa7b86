#pragma once

// A program's own threads and queue, and an executor over them.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "regard/attention.h"

namespace example {

/// What such a program has: threads that take jobs from a queue.
class WorkQueue {
 public:
  explicit WorkQueue(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~WorkQueue() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// ---- The executor ----------------------------------------------------------------------------

// The caller works too, and waits for workers, never for jobs: a job that the queue comes to late
// finds nothing left. So a run from within one of the queue's own jobs cannot block it.
class QueueExecutor final : public regard::Executor {
 public:
  explicit QueueExecutor(WorkQueue& queue) : queue_(queue) {}

  void run(int workers, Task task, void* state) override {
    const auto work = std::make_shared<Work>(workers, task, state);
    for (int i = 1; i < workers; ++i) queue_.post([work] { work->take_workers(); });
    work->take_workers();
    for (int left = work->unfinished; left > 0; left = work->unfinished) {
      work->unfinished.wait(left);
    }
    ++runs_;
  }

  int runs() const { return runs_; }

 private:
  struct Work {
    Work(int workers_in, Task task_in, void* state_in)
        : workers(workers_in), task(task_in), state(state_in), unfinished(workers_in) {}

    void take_workers() {
      for (int worker = next++; worker < workers; worker = next++) {
        task(state, worker);
        if (--unfinished == 0) unfinished.notify_all();
      }
    }

    const int workers;
    const Task task;
    void* const state;
    std::atomic<int> next{0};
    std::atomic<int> unfinished;
  };

  WorkQueue& queue_;
  std::atomic<int> runs_{0};
};

}  // namespace example

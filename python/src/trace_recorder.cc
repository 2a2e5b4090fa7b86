#include "trace_recorder.h"

#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "process_context.h"

namespace regard::python {
namespace {

thread_local const std::string* layer_of_thread = nullptr;
std::atomic<int> open_count{0};

}  // namespace

/// The open Recordings of the process. Nothing here waits for the GIL while it holds a mutex.
class Recorder {
 public:
  static Recorder& of_process() {
    static auto* const recorder = new Recorder;  // lives as long as any thread
    return *recorder;
  }

  void open(Recording* recording) {
    Context& context = process_context();  // may wait for the GIL
    const std::lock_guard changing(change_);
    {
      const std::lock_guard lock(mutex_);
      if (std::find(open_.begin(), open_.end(), recording) != open_.end()) return;
      open_.push_back(recording);
    }
    if (open_count.fetch_add(1, std::memory_order_relaxed) == 0)
      context.set_trace(receive, nullptr);
  }

  void close(Recording* recording) {
    Context& context = process_context();
    const std::lock_guard changing(change_);
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find(open_.begin(), open_.end(), recording);
      if (found == open_.end()) return;
      open_.erase(found);
    }
    // Waits for threads that are in receive(), which must not find mutex_ taken meanwhile.
    if (open_count.fetch_sub(1, std::memory_order_relaxed) == 1)
      context.set_trace(nullptr, nullptr);
  }

  std::mutex& mutex() noexcept { return mutex_; }

  void add(RecordedCall call) {
    const auto added = std::make_shared<const RecordedCall>(std::move(call));
    const std::lock_guard lock(mutex_);
    for (Recording* const recording : open_) recording->calls_.push_back(added);
  }

 private:
  Recorder() { pthread_atfork(lock_all, unlock_all, forget_all); }

  static void receive(void*, const CallTrace& call) {
    RecordedCall made;
    made.call = call;
    record_call(std::move(made));
  }

  // A fork waits for a change that is under way. Its child has a Context of its own, which is not
  // traced.
  static void lock_all() {
    of_process().change_.lock();
    of_process().mutex_.lock();
  }
  static void unlock_all() {
    of_process().mutex_.unlock();
    of_process().change_.unlock();
  }
  static void forget_all() {
    of_process().open_.clear();
    open_count.store(0, std::memory_order_relaxed);
    unlock_all();
  }

  std::mutex change_;  // held while the Context's function is set; first of the two
  std::mutex mutex_;   // guards open_ and what its Recordings hold
  std::vector<Recording*> open_;
};

void Recording::open() { Recorder::of_process().open(this); }
void Recording::close() { Recorder::of_process().close(this); }

std::vector<std::shared_ptr<const RecordedCall>> Recording::calls() const {
  const std::lock_guard lock(Recorder::of_process().mutex());
  return calls_;
}

void record_call(RecordedCall call) {
  if (layer_of_thread != nullptr) call.layer = *layer_of_thread;
  call.thread = PyThread_get_thread_ident();
  Recorder::of_process().add(std::move(call));
}

bool is_recording() noexcept { return open_count.load(std::memory_order_relaxed) != 0; }

LayerScope::LayerScope(const std::string& layer) noexcept : outer_(layer_of_thread) {
  layer_of_thread = &layer;
}
LayerScope::~LayerScope() { layer_of_thread = outer_; }

}  // namespace regard::python

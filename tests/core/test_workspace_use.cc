#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "cpu/threads/worker_hook.h"
#include "mock_backend.h"
#include "regard/backend.h"
#include "tests/support/executors.h"
#include "tests/support/scratch.h"

// The bytes of a workspace that a call touches: never more than the plan states, and all of its
// pages but one for each thread.

namespace regard::test {
namespace {

constexpr std::int64_t kPage = 4096;

struct Run {
  conformance::Problem problem;
  Plan plan;
  bool backward = false;
};

std::int64_t stated_bytes(const Run& run) {
  return run.backward ? run.plan.backward_workspace_bytes() : run.plan.workspace_bytes();
}

std::int32_t workers_of(const Run& run) {
  return run.backward ? run.plan.backward_kernel().workers : run.plan.kernel().workers;
}

/// Threads that take about as many tasks each, however busy the machine is: none is more than
/// `lead` ahead of another that has some left to take. Each run has another lead, so that a thread
/// that only took every second task the last time takes others, too.
class BusyThreads : public Executor {
 public:
  BusyThreads() {
    current = this;
    cpu::worker_hook.store(at_point);
  }
  ~BusyThreads() override { cpu::worker_hook.store(nullptr); }

  void run(int workers, Task task, void* state) override {
    call_ = {task, state};
    taken_.assign(static_cast<std::size_t>(workers), 0);
    lead_ = lead_ % 3 + 1;
    team_.run(workers, begin, this);
  }

 private:
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  struct Call {
    Task task;
    void* state;
  };
  static void begin(void* opaque, int worker) {
    auto& self = *static_cast<BusyThreads*>(opaque);
    own_worker = static_cast<std::size_t>(worker);
    self.call_.task(self.call_.state, worker);
    const std::lock_guard lock(self.mutex_);
    self.taken_[own_worker] = kAll;
    self.changed_.notify_all();
  }
  static void at_point(cpu::WorkerPoint point, const std::int64_t*, std::int64_t) {
    if (point == cpu::WorkerPoint::kTake) current->take();
  }
  void take() {
    if (taken_.empty()) return;  // one worker is the calling thread
    std::unique_lock lock(mutex_);
    ++taken_[own_worker];
    changed_.notify_all();
    // A thread that waits for another's result takes nothing meanwhile.
    changed_.wait_for(lock, std::chrono::milliseconds(100), [this] {
      return taken_[own_worker] <= *std::min_element(taken_.begin(), taken_.end()) + lead_;
    });
  }

  static inline BusyThreads* current = nullptr;
  static inline int lead_ = 0;
  static inline thread_local std::size_t own_worker = 0;
  TeamExecutor team_;
  Call call_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> taken_;  // by each worker
};

/// Executes on a workspace of this pattern; gives its bytes. Fails where a byte outside changed.
std::vector<unsigned char> bytes_after(const Run& run, unsigned char pattern) {
  Scratch scratch(stated_bytes(run), pattern);
  BusyThreads threads;
  scratch.launch.executor = &threads;
  const AttentionGradRequest& request = run.problem.request();
  const Status status = run.backward ? execute_backward(run.plan, request, request, scratch.launch)
                                     : execute(run.plan, request, scratch.launch);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(scratch.intact());
  const auto* bytes = static_cast<const unsigned char*>(scratch.launch.workspace.data);
  return {bytes, bytes + scratch.launch.workspace.bytes};
}

/// Bytes of the pages that some byte was written in. Two patterns tell a byte that was written with
/// the pattern from one that was not.
std::int64_t touched_bytes(const Run& run) {
  const std::vector<unsigned char> ones = bytes_after(run, 0xa5), twos = bytes_after(run, 0x5a);
  std::int64_t touched = 0;
  for (std::size_t page = 0; page < ones.size(); page += kPage) {
    const std::size_t end = std::min(page + kPage, ones.size());
    bool is_touched = false;
    for (std::size_t i = page; i < end; ++i) {
      is_touched = is_touched || ones[i] != 0xa5 || twos[i] != 0x5a;
    }
    if (is_touched) touched += static_cast<std::int64_t>(end - page);
  }
  return touched;
}

void check(const std::string& words, const BackendRef& backend, std::int32_t threads) {
  SCOPED_TRACE(words + " on " + to_string(backend));
  Env env = read_env();
  env.concurrency = threads;
  env.l2_bytes = 1 << 20;  // which row blocks depend on
  Context context(env);
  const Case source = parse_case(words).value();
  const Expected<Plan> made = plan(context, source.params, only({backend}));
  ASSERT_TRUE(made.ok()) << made.status().message();
  Run run{conformance::make_problem(source), *made};
  const auto expect_used = [&] {
    ASSERT_EQ(workers_of(run), threads);
    const std::int64_t least = stated_bytes(run) - threads * kPage;
    std::int64_t touched = 0;  // which tasks a worker has is left to chance
    for (int attempt = 0; attempt < 30 && touched < least; ++attempt) {
      touched = std::max(touched, touched_bytes(run));
    }
    EXPECT_GE(touched, least) << "of " << stated_bytes(run);
  };
  expect_used();
  if (!source.params.features.has(Feature::kNeedsGrad)) return;
  run.problem.begin_backward();
  run.backward = true;
  expect_used();
}

// A key less than a multiple of the tile: decode rows compute the last one in lanes, with as many
// scores as a row block has. Whole blocks of rows, and beside 768 rows a sequence of few, whose
// splits may take more.
constexpr const char* kForwards[] = {"b2 hq8 hkv4 sq1 skv1023 d64 f32",
                                     "b2 hq8 hkv4 sq1 skv1023 d64 bf16 layout=bshd",
                                     "b2 hq8 hkv4 sq2 skv959 d128 bf16 kv=i8 scales=token",
                                     "b2 hq8 hkv4 sq1 skv1023 d64 f32 kv=i8 scales=token",
                                     "b2 hq8 hkv4 sq1 skv959 d128 bf16 kv=i8 layout=bshd",
                                     "b2 hq8 hkv4 sq2 skv959 d128 bf16 kv=u4",
                                     "b2 hq8 hkv4 sq1 skv1023 d64 f32 kv=u4",
                                     "b2 hq8 hkv4 sq1 skv1023 d64 bf16 kv=f8e4m3 scales=token",
                                     "b1 hq8 sq48 skv640 d64 bf16",
                                     "b1 hq8 sq40 skv640 d64 bf16 kv=i8 scales=token",
                                     "b1 hq8 sq40 skv640 d64 f32 layout=bshd",
                                     "b4 hq8 sq96 skv128 d64 f32",
                                     "b4 hq8 sq96 skv128 d64 f32 layout=bshd",
                                     "b4 hq8 sq96 skv128 d64 bf16",
                                     "b2 hq4 sq768 d64 f32 lens_q=768,60",
                                     "b2 hq4 sq768 d64 f32 layout=bshd lens_q=768,60",
                                     "b2 hq3 sq768 d64 f32 layout=bshd lens_q=768,60",
                                     "b2 hq4 sq768 d64 bf16 causal diag=br lens_q=768,60",
                                     "b2 hq4 sq768 d64 bf16 layout=bshd lens_q=768,60",
                                     "b2 hq4 sq384 d64 bf16 kv=u4",
                                     "b2 hq4 sq384 d128 f16 mask",
                                     "b1 hq8 sq512 d256 f32 causal window=121,0",
                                     "b1 hq8 sq512 d256 f32 causal window=121,0 layout=bshd",
                                     "b1 hq8 sq512 d256 bf16 window=97,28",
                                     "b2 hq8 hkv4 sq512 d64 bf16 kv=u4 causal window=127,0",
                                     "b2 hq2 sq768 skv2048 d64 f32 lens_q=768,60",
                                     "b2 hq2 sq768 skv1024 d128 bf16 lens_q=768,60"};
// Of one worker: tasks are too few for two, or their splits are shared, and what one worker needs
// for a split of its own is left.
constexpr const char* kOnOneThread[] = {"b1 hq4 hkv1 sq4 skv4096 d128 bf16",
                                        "b1 hq2 sq40 skv2048 d64 f32"};

TEST(WorkspaceUse, IsWhatThePlanStates) {
  for (const BackendRef& backend : {kFlash, kEfficient, kMath}) {
    for (const char* words : kForwards) check(words, backend, 1);
    for (const char* words : kOnOneThread) check(words, backend, 1);
  }
}

TEST(WorkspaceUse, IsWhatThePlanStatesOnTwoThreads) {
  for (const BackendRef& backend : {kFlash, kEfficient, kMath}) {
    for (const char* words : kForwards) check(words, backend, 2);
  }
}

TEST(WorkspaceUse, OfGradientsIsWhatThePlanStates) {
  for (const BackendRef& backend : {kFlash, kEfficient, kMath}) {
    for (const char* words :
         {"b1 hq4 sq384 d64 f32 grad saved", "b1 hq2 sq384 d128 f32 grad saved",
          "b1 hq2 sq384 d256 f32 grad saved", "b1 hq4 sq384 d64 bf16 causal grad saved",
          "b1 hq4 sq384 d64 bf16 grad saved",
          "b2 hq4 sq768 d64 f16 causal diag=br grad saved lens_q=768,60"}) {
      check(words, backend, 1);
    }
  }
}

}  // namespace
}  // namespace regard::test

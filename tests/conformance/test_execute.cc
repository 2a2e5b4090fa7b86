#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "conformance/generator.h"
#include "conformance/problem.h"
#include "tests/support/allocations.h"
#include "tests/support/backends.h"
#include "tests/support/executors.h"
#include "tests/support/expected_refusals.h"
#include "tests/support/scratch.h"

// What execute() may not do, and what its result may not depend on.

namespace regard {
namespace {

using conformance::Problem;
using test::Forced;

class Execute : public testing::TestWithParam<Forced> {
 protected:
  std::unique_ptr<Context> context(int concurrency) const {
    return test::make_context(GetParam().isa, concurrency);
  }
};

std::vector<unsigned char> bits(Context& context, Problem* problem, const Forced& forced,
                                Executor* executor = nullptr) {
  problem->reset_outputs();
  test::run_forced(context, problem->request(), forced, executor);
  return problem->output_bytes();
}

// What of the backend's refusals is not in the table of those that are expected.
std::string unexpected_refusal(const Status& status, const Forced& forced) {
  const auto selection = status.selection();
  if (selection == nullptr) return status.to_string();
  return test::ExpectedRefusals().check(*selection->find(forced.backend));
}

// Enough rows for seven workers, uneven under causal, with every edit.
const char* const kThreadCases[] = {
    "b2 hq4 hkv2 sq257 skv257 d64 f32 causal lse",
    "b3 hq2 sq127 skv300 d32 bf16 causal diag=br mask bias alibi lens sinks lse poison",
    "b2 hq3 sq200 skv129 d16 f16 dropout=0.25 segments softcap=5 window=50,50 diag=tl lse",
    "b1 hq1 sq1 skv2000 d64 f32 lse",
    "b3 hq8 hkv2 sq1 skv1500 d64 bf16 lens lse",
    "b1 hq8 hkv2 sq5 skv3000 d32 f16 causal diag=br lse",
    "b1 hq8 hkv1 sq1 skv5000 d40 f32 mask window=4000,0 diag=br lse",
};

TEST_P(Execute, BitsDependOnNeitherThreadsNorTheirOrder) {
  for (const char* text : kThreadCases) {
    Problem problem = conformance::make_problem(parse_case(text).value());
    const std::vector<unsigned char> expected = bits(*context(1), &problem, GetParam());
    for (const int threads : {2, 7}) {
      const std::unique_ptr<Context> many = context(threads);
      test::CountingExecutor counting;
      test::BackwardsExecutor backwards;
      test::SerialExecutor serial;
      test::TeamExecutor team;
      for (Executor* executor :
           {static_cast<Executor*>(&counting), static_cast<Executor*>(&backwards),
            static_cast<Executor*>(&serial), static_cast<Executor*>(&team),
            static_cast<Executor*>(nullptr)}) {  // null: the own pool
        EXPECT_EQ(bits(*many, &problem, GetParam(), executor), expected) << text << threads;
      }
      EXPECT_LE(counting.max_workers(), threads) << text;
    }
  }
}

// Workers take tasks as they come, and threads start when the machine lets them: in a few tries
// more than one must have had work.
TEST_P(Execute, MoreThanOneWorkerHasWork) {
  const Case c = parse_case("b2 hq8 hkv8 sq512 skv512 d64 f32 causal").value();
  Problem problem = conformance::make_problem(c);
  for (const int threads : {2, 3, 7}) {
    const std::unique_ptr<Context> many = context(threads);
    test::CountingExecutor counting;
    int max = 0;
    for (int tries = 0; tries < 50 && max < 2; ++tries) {
      bits(*many, &problem, GetParam(), &counting);
      max = std::max(max, counting.workers_with_work());
    }
    EXPECT_EQ(counting.max_workers(), threads);
    EXPECT_GE(max, 2);
  }
}

/// Runs until two threads have met: a thread that is still starting allocates.
void wake(Executor& executor) {
  std::atomic<int> inside{0};
  for (int attempt = 0; attempt < 1000 && inside.load() < 2; ++attempt) {
    inside = 0;
    executor.run(
        2,
        [](void* opaque, int) {
          auto& count = *static_cast<std::atomic<int>*>(opaque);
          ++count;
          const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
          while (count.load() < 2 && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
          if (count.load() < 2) --count;
        },
        &inside);
  }
}

TEST_P(Execute, AllocatesNothing) {
  const std::unique_ptr<Context> two = context(2);
  test::BackwardsExecutor serial;
  for (std::uint64_t n = 0; n < 60; ++n) {
    Case c = conformance::random_case(77, n);
    if (n == 0) c = parse_case("b2 hq4 sq257 skv257 d64 f32 causal lse").value();  // wakes threads
    Problem problem = conformance::make_problem(c);
    const AttentionParams params = describe(problem.request()).value();
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const Expected<Plan> made = plan(*two, params, policy);
    if (!made) {
      EXPECT_EQ(unexpected_refusal(made.status(), GetParam()), "") << to_string(c);
      continue;
    }
    test::Scratch scratch(made->workspace_bytes());
    if (n == 0) wake(two->executor());
    for (Executor* executor : {&two->executor(), static_cast<Executor*>(&serial)}) {
      scratch.launch.executor = executor;
      const test::AllocationCounter counter;
      const Status status = execute(*made, problem.request(), scratch.launch);
      const std::uint64_t count = counter.count();
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(count, 0u) << to_string(c);
    }
  }
}

// The same for the way back, in a workspace of exactly the bytes that its plan states.
TEST_P(Execute, GoingBackAllocatesNothing) {
  const std::unique_ptr<Context> two = context(2);
  test::BackwardsExecutor serial;
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  int went_back = 0;
  for (std::uint64_t n = 0; n < 60; ++n) {
    Case c = conformance::random_grad_case(78, n);
    if (n == 0) c = parse_case("b2 hq4 sq257 d64 f32 causal saved grad").value();  // wakes threads
    Problem problem = conformance::make_problem(c);
    const AttentionGradRequest& request = problem.request();
    const Expected<Plan> made = plan(*two, describe(request).value(), policy);
    if (!made) {
      EXPECT_EQ(unexpected_refusal(made.status(), GetParam()), "") << to_string(c);
      continue;
    }
    const test::Scratch forward(made->workspace_bytes());
    ASSERT_TRUE(execute(*made, request, forward.launch).ok()) << to_string(c);
    problem.begin_backward();
    test::Scratch scratch(made->backward_workspace_bytes());
    if (n == 0) wake(two->executor());
    for (Executor* executor : {&two->executor(), static_cast<Executor*>(&serial)}) {
      scratch.launch.executor = executor;
      const test::AllocationCounter counter;
      const Status status = execute_backward(*made, request, request, scratch.launch);
      const std::uint64_t count = counter.count();
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(count, 0u) << to_string(c);
      EXPECT_TRUE(scratch.intact()) << to_string(c);
    }
    ++went_back;
  }
  EXPECT_GT(went_back, 20);
}

TEST(AllocationCounter, CountsEveryWayToAllocate) {
  const test::AllocationCounter counter;
  std::uint64_t before = counter.count();
  const auto counted = [&] {
    const std::uint64_t now = counter.count();
    const bool more = now > before;
    before = now;
    return more;
  };
  EXPECT_FALSE(counted());
  void* volatile block = ::operator new(10);
  EXPECT_TRUE(counted()) << "operator new";
  ::operator delete(block);
  block = ::operator new (10, std::align_val_t{64});
  EXPECT_TRUE(counted()) << "aligned operator new";
  ::operator delete (block, std::align_val_t{64});
  block = std::malloc(10);
  EXPECT_TRUE(counted()) << "malloc";
  block = std::realloc(block, 100000);
  EXPECT_TRUE(counted()) << "realloc";
  std::free(block);
  block = std::calloc(3, 5);
  EXPECT_TRUE(counted()) << "calloc";
  std::free(block);
#if !defined(__SANITIZE_THREAD__)  // GCC 12's runtime does not report aligned_alloc to its hooks
  block = std::aligned_alloc(64, 128);
  EXPECT_TRUE(counted()) << "aligned_alloc";
  std::free(block);
#endif
}

// EFFICIENT's promise: extra memory per worker does not grow with any length.
TEST(Efficient, WorkspaceDoesNotGrowWithLengths) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const char* rest :
         {"d64", "d128 causal diag=br mask bias lse", "d576 dv512 alibi diag=tl"}) {
      std::int64_t bytes[3] = {};
      const char* const lengths[] = {"sq64 skv1024", "sq64 skv131072", "sq64 skv1000000"};
      std::int32_t workers = 1;
      for (int n = 0; n < 3; ++n) {
        const std::string text = std::string("b1 hq8 ") + lengths[n] + " " + rest + " " + dtype;
        Policy policy;
        policy.only = std::vector<BackendRef>{test::kEfficientRef};
        const Plan made = plan(default_context(), parse_case(text).value().params, policy).value();
        bytes[n] = made.workspace_bytes();
        workers = made.kernel().workers;
      }
      // Up to 65,536 keys each split is one sum, which needs no room beside it.
      EXPECT_LE(bytes[0], bytes[1]) << dtype << " " << rest;
      EXPECT_EQ(bytes[1], bytes[2]) << dtype << " " << rest;
      EXPECT_LT(bytes[2], std::int64_t{workers} << 20) << dtype << " " << rest;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Execute, testing::ValuesIn(test::forced_backends()),
                         [](const auto& param) { return test::name_of(param.param); });

}  // namespace
}  // namespace regard

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "conformance/generator.h"
#include "conformance/problem.h"
#include "regard/attention.h"
#include "small_call.h"
#include "tests/support/allocations.h"

namespace regard::test {
namespace {

// Enough work that no backend keeps it to the calling thread.
constexpr std::int64_t kManyRows = 256;

// Counts its calls and runs workers in descending order.
struct CountingCallback {
  static void run(void* user, int32_t workers, regard_task task, void* state) {
    auto* self = static_cast<CountingCallback*>(user);
    ++self->runs;
    for (int32_t worker = workers - 1; worker >= 0; --worker) task(state, worker);
  }
  regard_executor executor() { return {run, this}; }
  int runs = 0;
};

TEST(CAttention, ComputesWhatTheCxxCallDoes) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  int computed = 0;
  for (std::uint64_t n = 0; n < 300; ++n) {
    const Case c = conformance::random_case(5, n);
    conformance::Problem problem = conformance::make_problem(c);
    const Status expected = attention(cxx_context, problem.request());
    const std::vector<unsigned char> bytes = problem.output_bytes();
    problem.reset_outputs();
    CRequest request(problem.request());
    const regard_status status = regard_attention(context.get(), request.get(), nullptr, nullptr);
    ASSERT_EQ(static_cast<int>(status), static_cast<int>(expected.code())) << to_string(c);
    if (status != REGARD_STATUS_OK) {
      EXPECT_EQ(regard_last_error(), expected.message());
      continue;
    }
    ++computed;
    EXPECT_EQ(problem.output_bytes(), bytes) << to_string(c);
    EXPECT_EQ(problem.check_memory(), "") << to_string(c);
  }
  EXPECT_GT(computed, 200);
}

TEST(CAttention, RefusesInTheWordsOfTheCxxCall) {
  SmallCall call;
  std::int64_t three_heads[4] = {2, 3, 8, 16};
  call.tensors[1].shape = call.tensors[2].shape = three_heads;
  const ContextHandle context = make_c_context();
  EXPECT_EQ(regard_attention(context.get(), &call.request, nullptr, nullptr),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(), "[describe] num_heads_kv (3) must divide num_heads_q (4)");
  EXPECT_TRUE(call.untouched());
}

TEST(CAttention, APolicyChoosesTheBackend) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  regard_policy policy = only_policy("math");
  const PlanHandle math = make_c_plan(context.get(), &call.request, &policy);
  ASSERT_NE(math, nullptr) << regard_last_error();
  EXPECT_STREQ(regard_plan_backend(math.get()), "math");
  policy.deny = "math";
  EXPECT_EQ(regard_attention(context.get(), &call.request, &policy, nullptr),
            REGARD_STATUS_NO_BACKEND);
  EXPECT_NE(std::string(regard_last_error()).find("math is listed in deny (math); remove it"),
            std::string::npos)
      << regard_last_error();
  EXPECT_TRUE(call.untouched());
}

TEST(CAttention, ACachedCallAllocatesWhatTheCxxCallDoes) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  std::vector<float> out;
  const AttentionRequest cxx = call.cxx(out);
  Context cxx_context;
  for (int n = 0; n < 3; ++n) {  // plans, starts threads, leases
    ASSERT_TRUE(attention(cxx_context, cxx).ok());
    ASSERT_EQ(regard_attention(context.get(), &call.request, nullptr, nullptr), REGARD_STATUS_OK);
  }
  const AllocationCounter cxx_counter;
  const Status status = attention(cxx_context, cxx);
  const std::uint64_t cxx_count = cxx_counter.count();
  ASSERT_TRUE(status.ok());
  const AllocationCounter counter;
  const regard_status c_status = regard_attention(context.get(), &call.request, nullptr, nullptr);
  EXPECT_EQ(counter.count(), cxx_count);
  EXPECT_EQ(c_status, REGARD_STATUS_OK);
}

TEST(CExecute, ComputesWhatAttentionDoesAndAllocatesNothing) {
  const ContextHandle context = make_c_context();
  SmallCall whole, planned;
  ASSERT_EQ(regard_attention(context.get(), &whole.request, nullptr, nullptr), REGARD_STATUS_OK);
  const PlanHandle plan = make_c_plan(context.get(), &planned.request);
  ASSERT_NE(plan, nullptr) << regard_last_error();
  CScratch scratch(plan.get());
  CountingCallback callback;
  scratch.launch.executor = callback.executor();
  const AllocationCounter counter;
  const regard_status status = regard_execute(plan.get(), &planned.request, &scratch.launch);
  const std::uint64_t count = counter.count();
  ASSERT_EQ(status, REGARD_STATUS_OK) << regard_last_error();
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(planned.out, whole.out);
}

TEST(CExecute, RefusesAWorkspaceThatOverlapsATensor) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  const PlanHandle plan = make_c_plan(context.get(), &call.request);
  ASSERT_NE(plan, nullptr);
  CScratch scratch(plan.get());
  regard_launch launch = scratch.launch;
  const auto address = reinterpret_cast<std::uintptr_t>(call.out.data());
  launch.workspace = reinterpret_cast<void*>(address / 64 * 64);
  EXPECT_EQ(regard_execute(plan.get(), &call.request, &launch), REGARD_STATUS_WORKSPACE);
  // The workspace is larger than out: it covers what lies behind it, too.
  EXPECT_NE(std::string(regard_last_error()).find("must not overlap "), std::string::npos)
      << regard_last_error();
}

TEST(CExecute, IncompleteWorkersAreAnError) {
  const ContextHandle context = make_c_context();
  SmallCall call(256);  // worth several workers
  regard_launch launch = regard_launch_default();
  launch.executor = {[](void*, int, void (*)(void*, int), void*) {}, nullptr};
  EXPECT_EQ(regard_attention(context.get(), &call.request, nullptr, &launch),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(regard_last_error()).find("executor had run 0 of "), std::string::npos)
      << regard_last_error();
}

TEST(CExecute, ChecksTheWorkspace) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  const PlanHandle plan = make_c_plan(context.get(), &call.request);
  ASSERT_NE(plan, nullptr);
  CScratch scratch(plan.get());
  ASSERT_GT(scratch.launch.workspace_bytes, 0u);
  EXPECT_EQ(regard_execute(plan.get(), &call.request, nullptr), REGARD_STATUS_WORKSPACE);
  --scratch.launch.workspace_bytes;
  EXPECT_EQ(regard_execute(plan.get(), &call.request, &scratch.launch), REGARD_STATUS_WORKSPACE);
  EXPECT_NE(std::string(regard_last_error())
                .find(std::to_string(scratch.launch.workspace_bytes) + " bytes, expected at least"),
            std::string::npos)
      << regard_last_error();
  EXPECT_TRUE(call.untouched());
}

TEST(CExecute, APlanMadeOfACaseFits) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  regard_plan* made = nullptr;
  ASSERT_EQ(regard_plan_create_case(context.get(), "b2 hq4 sq8 d16 causal", nullptr, &made),
            REGARD_STATUS_OK)
      << regard_last_error();
  const PlanHandle plan(made);
  CScratch scratch(plan.get());
  EXPECT_EQ(regard_execute(plan.get(), &call.request, &scratch.launch), REGARD_STATUS_OK)
      << regard_last_error();
  EXPECT_FALSE(call.untouched());
}

TEST(CExecutor, OfALaunchAndOfAContext) {
  const ContextHandle context = make_c_context();
  SmallCall own(kManyRows), launched(kManyRows), injected(kManyRows);
  regard_policy policy = only_policy("math");
  ASSERT_EQ(regard_attention(context.get(), &own.request, &policy, nullptr), REGARD_STATUS_OK);

  CountingCallback first, second;
  regard_launch launch = regard_launch_default();
  launch.executor = first.executor();
  ASSERT_EQ(regard_attention(context.get(), &launched.request, &policy, &launch), REGARD_STATUS_OK);
  EXPECT_GT(first.runs, 0);
  EXPECT_EQ(launched.out, own.out);

  const regard_executor executor = second.executor();
  ASSERT_EQ(regard_context_set_executor(context.get(), &executor), REGARD_STATUS_OK);
  ASSERT_EQ(regard_attention(context.get(), &injected.request, &policy, nullptr), REGARD_STATUS_OK);
  EXPECT_GT(second.runs, 0);
  EXPECT_EQ(injected.out, own.out);

  const int runs = second.runs;
  ASSERT_EQ(regard_context_set_executor(context.get(), nullptr), REGARD_STATUS_OK);
  ASSERT_EQ(regard_attention(context.get(), &own.request, &policy, nullptr), REGARD_STATUS_OK);
  EXPECT_EQ(second.runs, runs);
}

TEST(CExecutor, MayBeReplacedWhileCallsRun) {
  const ContextHandle context = make_c_context();
  const auto serial = [](void*, int32_t workers, regard_task task, void* state) {
    for (int32_t worker = 0; worker < workers; ++worker) task(state, worker);
  };
  std::thread caller([&] {
    SmallCall call(64);
    for (int n = 0; n < 500; ++n) {
      ASSERT_EQ(regard_attention(context.get(), &call.request, nullptr, nullptr), REGARD_STATUS_OK);
    }
  });
  int users[3];
  for (int n = 0; n < 500; ++n) {
    const regard_executor executor{serial, &users[n % 3]};
    ASSERT_EQ(regard_context_set_executor(context.get(), n % 4 == 0 ? nullptr : &executor),
              REGARD_STATUS_OK);
  }
  caller.join();
}

// Counts the workers of its last run, and runs them.
void count_workers(void* user, int32_t workers, regard_task task, void* state) {
  *static_cast<int32_t*>(user) = workers;
  for (int32_t worker = 0; worker < workers; ++worker) task(state, worker);
}

TEST(CContext, CallsUseTheConcurrencyThatIsSet) {
  const ContextHandle context = make_c_context();
  SmallCall call(kManyRows);
  int32_t ran = 0;
  regard_launch launch = regard_launch_default();
  launch.executor = {count_workers, &ran};
  for (const int32_t workers : {3, 2, 5}) {
    ASSERT_EQ(regard_context_set_concurrency(context.get(), workers), REGARD_STATUS_OK);
    int32_t now = 0;
    ASSERT_EQ(regard_context_concurrency(context.get(), &now), REGARD_STATUS_OK);
    EXPECT_EQ(now, workers);
    ASSERT_EQ(regard_attention(context.get(), &call.request, nullptr, &launch), REGARD_STATUS_OK);
    EXPECT_EQ(ran, workers);
  }
  for (const int32_t workers : {0, -1, 1025}) {
    EXPECT_EQ(regard_context_set_concurrency(context.get(), workers),
              REGARD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(regard_last_error(),
              "[set_concurrency] concurrency (" + std::to_string(workers) + ") must be 1..1024");
  }
}

TEST(CPlan, OutlivesItsContextAndItsExecutor) {
  SmallCall call(kManyRows);
  CountingCallback callback;
  PlanHandle plan;
  {
    const ContextHandle context = make_c_context();
    regard_policy policy = only_policy("math");
    const regard_executor executor = callback.executor();
    ASSERT_EQ(regard_context_set_executor(context.get(), &executor), REGARD_STATUS_OK);
    plan = make_c_plan(context.get(), &call.request, &policy);
    ASSERT_NE(plan, nullptr) << regard_last_error();
  }
  CScratch scratch(plan.get());
  EXPECT_EQ(regard_execute(plan.get(), &call.request, &scratch.launch), REGARD_STATUS_OK);
  EXPECT_GT(callback.runs, 0);
}

TEST(CContext, KeepsAPolicyAndTheDefaultOneStays) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  regard_policy policy = only_policy("math");
  ASSERT_EQ(regard_context_set_policy(context.get(), &policy), REGARD_STATUS_OK);
  EXPECT_STREQ(regard_plan_backend(make_c_plan(context.get(), &call.request).get()), "math");
  ASSERT_EQ(regard_context_set_policy(context.get(), nullptr), REGARD_STATUS_OK);
  EXPECT_STRNE(regard_plan_backend(make_c_plan(context.get(), &call.request).get()), "math");

  regard_context* const shared = regard_default_context();
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(regard_default_context(), shared);
  regard_context_destroy(shared);
  regard_context_destroy(nullptr);
  const std::uint64_t before = default_context().plan_cache_counters().misses;
  ASSERT_EQ(regard_attention(shared, &call.request, nullptr, nullptr), REGARD_STATUS_OK);
  EXPECT_EQ(default_context().plan_cache_counters().misses, before + 1);
}

TEST(CMergeStates, MergesWhatTheCxxCallDoes) {
  std::vector<float> a(16, 1.0f), b(16, 3.0f), lse_a(4, 0.0f), lse_b(4, 1.0f);
  std::vector<float> out(16), lse(4), cxx_out(16), cxx_lse(4);
  const auto rows = [](std::vector<float>& data) {
    return make_view(data.data(), Dtype::kF32, {1, 2, 2, 4});
  };
  const auto logs = [](std::vector<float>& data) {
    return make_view(data.data(), Dtype::kF32, {1, 2, 2});
  };
  ASSERT_TRUE(
      merge_states({{rows(a), logs(lse_a)}, {rows(b), logs(lse_b)}}, rows(cxx_out), logs(cxx_lse))
          .ok());
  CTensors tensors;
  const regard_state states[] = {{tensors.make(rows(a)), tensors.make(logs(lse_a))},
                                 {tensors.make(rows(b)), tensors.make(logs(lse_b))}};
  ASSERT_EQ(regard_merge_states(states, 2, tensors.make(rows(out)), tensors.make(logs(lse))),
            REGARD_STATUS_OK)
      << regard_last_error();
  EXPECT_EQ(out, cxx_out);
  EXPECT_EQ(lse, cxx_lse);
  std::vector<float> without(16);
  ASSERT_EQ(regard_merge_states(states, 2, tensors.make(rows(without)), nullptr), REGARD_STATUS_OK);
  EXPECT_EQ(without, cxx_out);
}

}  // namespace
}  // namespace regard::test

// What is remembered of backends that refuse what their records allow, and what is not.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mock_backend.h"

namespace regard::test {
namespace {

AttentionParams decode_params(std::int64_t seqlen_kv) {
  AttentionParams params = case_params("b1 hq32 hkv8 sq1 skv1 d128 bf16");
  params.seqlen_kv = seqlen_kv;
  return params;
}

// A Context whose last candidate is the mock.
struct MockLast {
  MockLast() { add_backend(context, "mock", mock); }
  Context context{described_env()};
  std::shared_ptr<MockBackend> mock = std::make_shared<MockBackend>(generous_info("mock"));
  Policy policy = prefer({custom("mock")});
};

// A request of 4 rows in one head; MATH can compute it.
struct FourRows {
  FourRows() {
    request.q = request.k = request.v = make_view(data.data(), {1, 1, 4, 8});
    request.out = make_view(out.data(), {1, 1, 4, 8});
  }
  std::vector<float> data = std::vector<float>(32, 0.5f), out = std::vector<float>(32, 7.0f);
  AttentionRequest request;
};

TEST(LearnedRefusals, OneRefusalLeavesOtherPlansCached) {
  MockLast on;
  on.mock->refuse_plan = [](const AttentionKey& key) { return key.params().seqlen_kv > 100; };
  ASSERT_TRUE(plan(on.context, decode_params(8), on.policy));
  ASSERT_TRUE(plan(on.context, decode_params(16)));
  ASSERT_EQ(plan(on.context, decode_params(500), on.policy)->backend(), kFlash);
  const std::uint64_t misses = on.context.plan_cache_counters().misses;
  ASSERT_TRUE(plan(on.context, decode_params(8), on.policy));
  ASSERT_TRUE(plan(on.context, decode_params(16)));
  EXPECT_EQ(on.context.plan_cache_counters().misses, misses);
}

TEST(LearnedRefusals, ARefusalInExecuteIsLearnedAndAttentionSelectsAgain) {
  MockLast on;
  on.mock->refuse_execute = StatusCode::kRefusedAtPlan;
  FourRows call;
  const Status status = attention(on.context, call.request, on.policy);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(call.out, std::vector<float>(32, 0.5f));
  EXPECT_EQ(on.mock->executions, 1);

  const AttentionParams params = describe(call.request).value();
  const Selection selection = explain(on.context, params, on.policy);
  EXPECT_NE(selection.chosen, custom("mock"));
  ASSERT_EQ(selection.find(custom("mock"))->refusals.size(), 1u);
  EXPECT_EQ(selection.find(custom("mock"))->refusals[0].code, RefusalCode::kLearned);
  ASSERT_EQ(selection.warnings.size(), 1u);
  EXPECT_NE(selection.warnings[0].find("custom:mock"), std::string::npos);
  // No later call tries it.
  ASSERT_TRUE(attention(on.context, call.request, on.policy).ok());
  EXPECT_EQ(on.mock->executions, 1);
}

TEST(LearnedRefusals, AShortageIsNotRemembered) {
  MockLast on;
  on.mock->plan_refusal = StatusCode::kUnavailable;
  on.mock->refuse_plan = [](const AttentionKey&) { return true; };
  const Plan other = plan(on.context, decode_params(8), on.policy).value();
  EXPECT_EQ(other.backend(), kFlash);
  const std::vector<std::string> warnings = other.selection().warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("unavailable now: [mock] engine says no"), std::string::npos);
  EXPECT_EQ(on.context.plan_cache_counters().refusals, 0u);
  on.mock->refuse_plan = nullptr;
  EXPECT_EQ(plan(on.context, decode_params(8), on.policy)->backend(), custom("mock"));
}

TEST(LearnedRefusals, BelongToAnInstructionSet) {
  Context context(described_env());
  BackendInfo info = generous_info("mock");
  info.forward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-6},
                         {Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-3}};
  info.forward.dtypes[1].min_isa = Isa::kAvx2;
  auto mock = std::make_shared<MockBackend>(info);
  mock->refused_isa = Isa::kAvx2;
  add_backend(context, "mock", mock);
  const AttentionParams params = case_params("sq8 d8 f32");
  Policy policy = prefer({custom("mock")});
  EXPECT_EQ(plan(context, params, policy)->backend(), kFlash);
  policy.max_error = 1e-5;
  EXPECT_EQ(plan(context, params, policy)->backend(), custom("mock"));
}

TEST(LearnedRefusals, AreTheMostRecentlyUsed) {
  LearnedRefusals learned;
  const auto key = [](std::size_t n) {
    return AttentionKey::make(decode_params(static_cast<std::int64_t>(n)), false,
                              KeyExtents::kExact)
        .value();
  };
  const std::size_t more = LearnedRefusals::kCapacity + 10;
  for (std::size_t n = 0; n < more; ++n) {
    learned.add({custom("mock"), key(n), {}, "no"});
    learned.find(key(0), key(0));  // the oldest is in use
  }
  EXPECT_EQ(learned.size(), LearnedRefusals::kCapacity);
  EXPECT_EQ(learned.added(), more);
  EXPECT_EQ(learned.find(key(0), key(0)).size(), 1u);
  EXPECT_TRUE(learned.find(key(1), key(1)).empty());
  EXPECT_EQ(learned.find(key(more - 1), key(1)).size(), 1u);
}

TEST(ExactExtents, ABackendIsPlannedAtTheExtentsThatWereAsked) {
  BackendInfo info = generous_info("exact");
  info.needs_exact_extents = true;
  Context context(described_env());
  auto exact = std::make_shared<MockBackend>(info);
  add_backend(context, "exact", exact);
  const Policy policy = prefer({custom("exact")});
  for (const std::int64_t n : {1024, 1001, 1002, 1001}) {
    const Plan made = plan(context, decode_params(n), policy).value();
    EXPECT_EQ(made.backend(), custom("exact"));
    EXPECT_EQ(made.params().seqlen_kv, n);
  }
  EXPECT_EQ(exact->planned_seqlens_kv, (std::vector<std::int64_t>{1024, 1001, 1002}));
  // Others keep one plan for a class of extents.
  for (const std::int64_t n : {1001, 1002}) {
    EXPECT_EQ(plan(context, decode_params(n))->params().seqlen_kv, 1024);
  }
  EXPECT_EQ(context.plan_cache_counters().misses, 4u);
}

TEST(ExactExtents, APlanTakesItsOwnExtentsAlone) {
  BackendInfo info = generous_info("exact");
  info.needs_exact_extents = true;
  Context context(described_env());
  add_backend(context, "exact", std::make_shared<MockBackend>(info));
  FourRows call;
  const Plan made = plan(context, describe(call.request).value(), only({custom("exact")})).value();
  EXPECT_TRUE(execute(made, call.request).ok());
  call.request.q.shape[2] = call.request.out.shape[2] = 3;
  const Status status = execute(made, call.request);
  EXPECT_EQ(status.message(), "[execute] seqlen_q (3) does not fit the plan, expected 4");
}

TEST(Prepare, AttentionPreparesWhatExecuteNeeds) {
  MockLast on;
  FourRows call;
  ASSERT_TRUE(attention(on.context, call.request, on.policy).ok());
  EXPECT_EQ(on.mock->preparations, 1);
  const Plan made = plan(on.context, describe(call.request).value(), on.policy).value();
  ASSERT_TRUE(execute(made, call.request).ok());
  EXPECT_EQ(on.mock->preparations, 1);
  ASSERT_TRUE(prepare(made, call.request).ok());
  EXPECT_EQ(on.mock->preparations, 2);
  EXPECT_EQ(prepare(Plan(), call.request).message(),
            "[prepare] empty plan, expected one of plan()");
}

}  // namespace
}  // namespace regard::test

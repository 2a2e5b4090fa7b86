#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mock_backend.h"

namespace regard::test {
namespace {

AttentionParams decode(std::int64_t seqlen_kv) {
  AttentionParams params = case_params("b1 hq32 hkv8 sq1 skv1 d128 bf16");
  params.seqlen_kv = seqlen_kv;
  return params;
}

std::uint64_t selections_for(std::int64_t first, std::int64_t last) {
  Context context(described_env());
  for (std::int64_t n = first; n <= last; ++n) EXPECT_TRUE(plan(context, decode(n))) << n;
  const PlanCacheCounters counters = context.plan_cache_counters();
  EXPECT_EQ(counters.misses, counters.selections);
  EXPECT_EQ(counters.hits + counters.misses, static_cast<std::uint64_t>(last - first + 1));
  return counters.selections;
}

TEST(PlanCache, AGrowingCacheMakesFewSelections) {
  EXPECT_LE(selections_for(65, 4160), 64u);
  EXPECT_LE(selections_for(1, 4096), 112u);
}

TEST(PlanCache, PerCallScalarsNeverMiss) {
  // 1,000 steps with their own seed and offset: one selection.
  Context context(described_env());
  auto mock = std::make_shared<MockBackend>(generous_info("mock"));
  add_backend(context, "mock", mock);
  std::vector<float> data(4 * 8);
  AttentionRequest request;
  request.q = request.k = request.v = make_view(data.data(), {1, 1, 4, 8});
  std::vector<float> out(4 * 8);
  request.out = make_view(out.data(), {1, 1, 4, 8});
  request.options.dropout_p = 0.5;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    request.rng_seed = step;
    request.rng_offset = step * 3;
    ASSERT_TRUE(attention(context, request, only({custom("mock")})).ok());
  }
  EXPECT_EQ(context.plan_cache_counters().selections, 1u);
  EXPECT_EQ(mock->executions, 1000);
}

TEST(PlanCache, EachGenerationsChangeCostsOneMiss) {
  Context context(described_env());
  const AttentionParams params = decode(100);
  const auto misses = [&] { return context.plan_cache_counters().misses; };
  ASSERT_TRUE(plan(context, params));
  ASSERT_TRUE(plan(context, params));
  EXPECT_EQ(misses(), 1u);

  add_backend(context, "late", std::make_shared<MockBackend>(generous_info("late")));
  ASSERT_TRUE(plan(context, params));
  ASSERT_TRUE(plan(context, params));
  EXPECT_EQ(misses(), 2u);

  context.set_tuning({});
  ASSERT_TRUE(plan(context, params));
  ASSERT_TRUE(plan(context, params));
  EXPECT_EQ(misses(), 3u);
}

TEST(PlanCache, PolicyIsPartOfTheKey) {
  Context context(described_env());
  ASSERT_EQ(plan(context, decode(8))->backend(), kFlash);
  ASSERT_EQ(plan(context, decode(8), only({kMath}))->backend(), kMath);
  {
    const ScopedPolicy scope(only({kMath}));
    ASSERT_EQ(plan(context, decode(8))->backend(), kMath);
  }
  ASSERT_EQ(plan(context, decode(8))->backend(), kFlash);
  context.set_policy(only({kMath}));
  ASSERT_EQ(plan(context, decode(8))->backend(), kMath);
}

TEST(PlanCache, LeastRecentlyUsedPlansLeave) {
  Context context(described_env(), 2);
  ASSERT_TRUE(plan(context, decode(1)));
  ASSERT_TRUE(plan(context, decode(2)));
  ASSERT_TRUE(plan(context, decode(1)));  // 2 is now the oldest
  ASSERT_TRUE(plan(context, decode(3)));
  PlanCacheCounters counters = context.plan_cache_counters();
  EXPECT_EQ(counters.evictions, 1u);
  EXPECT_EQ(counters.size, 2u);
  EXPECT_EQ(counters.capacity, 2u);
  ASSERT_TRUE(plan(context, decode(1)));
  EXPECT_EQ(context.plan_cache_counters().misses, counters.misses);
  ASSERT_TRUE(plan(context, decode(2)));
  EXPECT_EQ(context.plan_cache_counters().misses, counters.misses + 1);
}

TEST(PlanCache, ErrorsAreNotCached) {
  Context context(described_env());
  ASSERT_FALSE(plan(context, decode(8), only({custom("later")})));
  add_backend(context, "later", std::make_shared<MockBackend>(generous_info("later")));
  EXPECT_TRUE(plan(context, decode(8), only({custom("later")})));
}

TEST(LearnedRefusals, AreVisibleAndSelectAgain) {
  Context context(described_env());
  auto stubborn = std::make_shared<MockBackend>(generous_info("stubborn"));
  stubborn->refuse_plan = [](const AttentionKey& key) { return key.params().seqlen_kv > 100; };
  add_backend(context, "stubborn", stubborn);
  const Policy policy = prefer({custom("stubborn")});

  EXPECT_EQ(plan(context, decode(50), policy)->backend(), custom("stubborn"));
  const auto made = plan(context, decode(500), policy);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->backend(), kFlash);
  EXPECT_EQ(context.plan_cache_counters().selections, 3u);

  const Selection selection = made->selection();
  const Verdict* verdict = selection.find(custom("stubborn"));
  ASSERT_NE(verdict, nullptr);
  EXPECT_FALSE(verdict->usable);
  ASSERT_EQ(verdict->refusals.size(), 1u);
  EXPECT_EQ(verdict->refusals[0].code, RefusalCode::kLearned);
  EXPECT_EQ(verdict->refusals[0].actual, "[mock] engine says no");
  // It is remembered: the backend is not asked again, nor for another key's sake.
  const int plans = stubborn->plans;
  ASSERT_TRUE(plan(context, decode(500), policy));
  EXPECT_EQ(stubborn->plans, plans);
  EXPECT_EQ(plan(context, decode(50), policy)->backend(), custom("stubborn"));
}

TEST(Plans, ABackendThatMisstatesItsWorkspaceIsAnError) {
  Context context(described_env());
  auto liar = std::make_shared<MockBackend>(generous_info("liar"));
  liar->workspace = 64;
  liar->planned_workspace = 128;
  add_backend(context, "liar", liar);
  const auto made = plan(context, decode(8), only({custom("liar")}));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().code(), StatusCode::kInternal);
  EXPECT_NE(made.status().message().find("plans 128 workspace bytes"), std::string::npos);
}

}  // namespace
}  // namespace regard::test

// The concurrency of a Context, set while it is used.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "mock_backend.h"
#include "regard/attention.h"
#include "tests/support/backends.h"
#include "tests/support/scratch.h"

namespace regard::test {
namespace {

constexpr const char* kPrefill = "b2 hq8 sq512 d64 f32";

std::int32_t workers_of(Context& context, const char* words = kPrefill) {
  return plan(context, case_params(words)).value().kernel().workers;
}

// A forward and its memory.
struct Forward {
  Forward() : q(4 * 300 * 32), out(q.size()) {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0.01f * static_cast<float>(i * 37 % 211) - 1;
    request.q = request.k = request.v = make_view(q.data(), {1, 4, 300, 32});
    request.out = make_view(out.data(), {1, 4, 300, 32});
    request.options.is_causal = true;
  }
  std::vector<float> run(Context& context) {
    out.assign(out.size(), -7.0f);
    check(attention(context, request));
    return out;
  }
  std::vector<float> q, out;
  AttentionRequest request;
};

TEST(Concurrency, PlansFollowIt) {
  Context context(described_env());
  EXPECT_EQ(context.concurrency(), 2);
  EXPECT_EQ(workers_of(context), 2);
  for (const std::int32_t n : {3, 1, 5}) {
    ASSERT_TRUE(context.set_concurrency(n).ok());
    EXPECT_EQ(context.concurrency(), n);
    EXPECT_EQ(context.env().concurrency, n);
    EXPECT_EQ(workers_of(context), n);
  }
}

TEST(Concurrency, ACachedPlanIsOfItsOwn) {
  Context context(described_env());
  const auto misses = [&] { return context.plan_cache_counters().misses; };
  workers_of(context);
  ASSERT_TRUE(context.set_concurrency(4).ok());
  EXPECT_EQ(workers_of(context), 4);
  EXPECT_EQ(misses(), 2u);
  ASSERT_TRUE(context.set_concurrency(2).ok());
  EXPECT_EQ(workers_of(context), 2);  // that of before
  EXPECT_EQ(misses(), 2u);
}

TEST(Concurrency, WhatIsOutOfRangeIsRefusedAndChangesNothing) {
  Context context(described_env());
  for (const std::int32_t n : {0, -1, kMaxConcurrency + 1}) {
    const Status status = context.set_concurrency(n);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "[set_concurrency] concurrency (" + std::to_string(n) + ") must be 1..1024");
    EXPECT_EQ(context.concurrency(), 2);
  }
  EXPECT_TRUE(context.set_concurrency(kMaxConcurrency).ok());
}

TEST(Concurrency, ATuningTableIsForItsOwn) {
  Context context(described_env());
  TuningTable table;
  table.source = "fixture";
  table.version = described_env().version;
  table.isa = to_string(described_env().isa);
  table.cpu_model = described_env().cpu_model;
  table.concurrency = 2;
  table.rules = {{"", {kMath}}};
  context.set_tuning(table);
  EXPECT_EQ(explain(context, case_params(kPrefill)).chosen, kMath);
  ASSERT_TRUE(context.set_concurrency(3).ok());
  const Selection selection = explain(context, case_params(kPrefill));
  EXPECT_NE(selection.chosen, kMath);
  ASSERT_EQ(selection.warnings.size(), 1u);
  EXPECT_NE(selection.warnings[0].find("concurrency"), std::string::npos) << selection.warnings[0];
  EXPECT_NE(plan(context, case_params(kPrefill)).value().backend(), kMath);
}

TEST(Concurrency, ChangesNoBits) {
  Context context(read_env());
  ASSERT_TRUE(context.set_concurrency(1).ok());
  Forward call;
  const std::vector<float> expected = call.run(context);
  for (const std::int32_t n : {4, 2, 7, 1, 3}) {
    ASSERT_TRUE(context.set_concurrency(n).ok());
    EXPECT_EQ(call.run(context), expected) << n;
  }
}

TEST(Concurrency, APlanThatIsKeptRuns) {
  Context context(read_env());
  ASSERT_TRUE(context.set_concurrency(4).ok());
  Forward call;
  const std::vector<float> expected = call.run(context);
  const Plan kept = plan(context, describe(call.request).value()).value();
  EXPECT_EQ(kept.kernel().workers, 4);
  for (const std::int32_t n : {1, 6}) {
    ASSERT_TRUE(context.set_concurrency(n).ok());
    call.out.assign(call.out.size(), -7.0f);
    Scratch scratch(kept.workspace_bytes());
    ASSERT_TRUE(execute(kept, call.request, scratch.launch).ok());
    EXPECT_EQ(call.out, expected) << n;
  }
}

TEST(Concurrency, ChangesWhileOthersCompute) {
  Context context(read_env());
  const std::vector<float> expected = Forward().run(context);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      Forward call;
      for (int round = 0; round < 40; ++round) wrong += call.run(context) == expected ? 0 : 1;
    });
  }
  std::vector<std::thread> setters;
  for (int setter = 0; setter < 2; ++setter) {
    setters.emplace_back([&, setter] {
      for (std::int32_t n = setter; !done; n = (n * 5 + 3) % 7) {
        check(context.set_concurrency(1 + n));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  done = true;
  for (std::thread& setter : setters) setter.join();
  EXPECT_EQ(wrong, 0);
  ASSERT_TRUE(context.set_concurrency(2).ok());
  EXPECT_EQ(workers_of(context), 2);
}

}  // namespace
}  // namespace regard::test

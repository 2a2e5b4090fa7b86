#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "regard/shared_prefix.h"
#include "tests/support/tensors.h"

// What a call over a shared prefix may hold is checked before anything is written.

namespace regard {
namespace {

using conformance::Problem;

constexpr const char* kTwo =
    "b2 hq4 hkv2 sq2 skv64 d8 f32 paged page_size=16 append=2 causal diag=br lens_kv=40,33 lse";

/// Both sequences begin with sequence 0's first two pages.
Problem prefix_problem(const std::string& text) {
  Problem problem = conformance::make_problem(parse_case(text).value(), {.dense = true});
  if (!problem.request().page_table.present()) return problem;
  auto* const ids = static_cast<std::int32_t*>(problem.request().page_table.data);
  for (int page = 0; page < 2; ++page) ids[4 + page] = ids[page];
  return problem;
}

void expect_prefix_refused(const Problem& problem, const AttentionRequest& r, std::int64_t shared,
                           const std::string& fragment) {
  Context context;
  const std::vector<unsigned char> out = problem.output_bytes();
  const std::vector<char> k = test::bytes_of(problem.request().k);
  const Status status = attention_shared_prefix(context, r, shared);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << fragment;
  EXPECT_NE(status.message().find(fragment), std::string::npos) << status.message();
  EXPECT_EQ(problem.output_bytes(), out) << fragment;
  EXPECT_EQ(test::bytes_of(problem.request().k), k) << fragment;
}

TEST(SharedPrefix, DataIsCheckedBeforeAnythingIsWritten) {
  const Problem problem = prefix_problem(kTwo);
  const AttentionRequest& r = problem.request();
  expect_prefix_refused(problem, r, -16, "shared_prefix_kv (-16) must be >= 0");
  expect_prefix_refused(problem, r, 17,
                        "shared_prefix_kv (17) must be a multiple of page_size, 16");
  expect_prefix_refused(problem, r, 80, "at most 64, the rows of a sequence's pages");
  expect_prefix_refused(problem, r, 48,
                        "seqlens_kv[0] (40), expected at least 48, shared_prefix_kv");
  auto* const ids = static_cast<std::int32_t*>(r.page_table.data);
  const std::int32_t first = ids[5];
  ids[5] = ids[2];
  expect_prefix_refused(problem, r, 32,
                        "page_table[1,1] (" + std::to_string(ids[2]) + "), expected " +
                            std::to_string(first) + ", that of sequence 0");
  ids[5] = first;
  Context context;
  EXPECT_TRUE(attention_shared_prefix(context, r, 32).ok());
}

TEST(SharedPrefix, QueriesSeeAllOfIt) {
  // The first of 5 queries of a sequence of 33 keys stands at key 28.
  const Problem early =
      prefix_problem("b2 hq2 sq5 skv64 d8 f32 paged page_size=16 causal diag=br lens_kv=40,33");
  expect_prefix_refused(early, early.request(), 32,
                        "keys that the first query of sequence 1 sees (29), expected at least 32");
  const Problem tree =
      prefix_problem("b2 hq2 sq5 skv64 d8 f32 paged page_size=16 tree=5 lens_kv=40,33");
  expect_prefix_refused(tree, tree.request(), 32, "keys of tree_mask (5), expected at most 1");
}

TEST(SharedPrefix, IsRefusedByName) {
  const std::string paged = "b2 hq2 sq2 skv64 d8 f32 paged page_size=16 lens_kv=40,33 ";
  struct Refused {
    const char* words;
    const char* fragment;
  };
  for (const Refused& refused :
       {Refused{"window=9,0 diag=br", "window_left (given) is not supported"},
        Refused{"alibi diag=br", "alibi_slopes (given) is not supported"},
        Refused{"mask", "attn_mask (given) is not supported"},
        Refused{"bias", "attn_bias (given) is not supported"},
        Refused{"segments", "segment_ids_q (given) is not supported"},
        Refused{"dropout=0.5", "dropout_p (given) is not supported"},
        Refused{"scores=probs", "scores_out (given) is not supported"},
        Refused{"descales=head", "descales [B,Hkv] (given) is not supported"},
        Refused{"cache_leftpad", "cache_leftpad (given) is not supported"},
        Refused{"grad", "needs_grad (given) is not supported"},
        Refused{"causal diag=tl", "diagonal (top_left) must be bottom_right"}}) {
    const Problem problem = prefix_problem(paged + refused.words);
    AttentionRequest r = problem.request();
    expect_prefix_refused(problem, r, 32, refused.fragment);
  }
  const Problem dense = prefix_problem("b2 hq2 sq2 skv64 d8 f32 lens_kv=40,33");
  expect_prefix_refused(dense, dense.request(), 32, "page_table (absent) must be given");
}

TEST(SharedPrefix, ThePlanIsThatOfTheKeysBehindIt) {
  Context context;
  const Problem problem = prefix_problem(kTwo);
  PlannedCall planned;
  Launch launch;
  launch.planned = &planned;
  ASSERT_TRUE(attention_shared_prefix(context, problem.request(), 32, {}, launch).ok());
  ASSERT_TRUE(planned.params.has_value());
  EXPECT_TRUE(planned.params->features.has(Feature::kCacheLeftpad));
}

TEST(SharedPrefix, ExplainHasTheParamsOfBothCalls) {
  for (const char* words :
       {kTwo, "b2 hq4 hkv2 sq2 skv64 d8 bf16 paged page_size=16 lens_kv=40,33 sinks",
        "b2 hq4 hkv2 sq1 skv64 d8 f32 kv=i8 scales=token paged page_size=16 lens_kv=40,33",
        "b2 hq4 hkv2 sq2 skv64 d8 f32 paged page_size=16 append=2 rotary=4 causal diag=br "
        "lens_kv=40,33",
        "b2 hq4 hkv2 sq2 skv64 d8 f32 paged page_size=16 packed total_q=3 rows_q=1,2 "
        "lens_kv=40,33"}) {
    SCOPED_TRACE(words);
    const Problem problem = prefix_problem(words);
    Context context;
    const Expected<AttentionParams> params = describe(problem.request());
    ASSERT_TRUE(params.ok()) << params.status().message();
    const Expected<Selection> explained = explain_shared_prefix(context, *params, 32);
    ASSERT_TRUE(explained.ok()) << explained.status().message();
    ASSERT_EQ(explained->prefix.size(), 1u);
    std::vector<AttentionParams> calls;
    context.set_trace(
        [](void* to, const CallTrace& call) {
          if (call.params) static_cast<std::vector<AttentionParams>*>(to)->push_back(*call.params);
        },
        &calls);
    ASSERT_TRUE(attention_shared_prefix(context, problem.request(), 32).ok());
    ASSERT_GE(calls.size(), 2u);
    EXPECT_EQ(to_string(explained->prefix[0].params), to_string(calls[0]));
    EXPECT_EQ(to_string(explained->params), to_string(calls[1]));
    EXPECT_NE(to_string(*explained).find("before it, the call over the shared prefix:\n\ncase "),
              std::string::npos);
  }
}

/// Aligned memory for a plan, of which `bytes` are stated.
struct PlanMemory {
  explicit PlanMemory(std::int64_t bytes) : block(static_cast<std::size_t>(bytes) + 64, '\x55') {
    const auto at = (reinterpret_cast<std::uintptr_t>(block.data()) + 63) / 64 * 64;
    launch.workspace = {reinterpret_cast<void*>(at), static_cast<std::size_t>(bytes)};
  }
  std::vector<char> block;
  Launch launch;
};

TEST(SharedPrefix, APlanServesSmallerCallsThanItsOwn) {
  Context context;
  const AttentionParams largest =
      describe(prefix_problem("b4 hq4 hkv2 sq5 skv160 d8 f32 paged page_size=16 append=5 causal "
                              "diag=br lens_kv=155,150,70,90 lse")
                   .request())
          .value();
  const Expected<SharedPrefixPlan> plan = plan_shared_prefix(context, largest, 32);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->shared_prefix_kv(), 32);
  PlanMemory memory(plan->workspace_bytes());
  for (const char* words :
       {"b2 hq4 hkv2 sq2 skv64 d8 f32 paged page_size=16 append=2 causal diag=br lens_kv=40,33 lse",
        "b2 hq4 hkv2 sq1 skv64 d8 f32 paged page_size=16 append=1 causal diag=br lens_kv=40,33 lse",
        "b1 hq4 hkv2 sq5 skv64 d8 f32 paged page_size=16 append=5 causal diag=br lens_kv=40 lse",
        "b0 hq4 hkv2 sq5 skv64 d8 f32 paged page_size=16 append=5 causal diag=br lse"}) {
    SCOPED_TRACE(words);
    Problem problem = conformance::make_problem(parse_case(words).value(), {.dense = true});
    const AttentionRequest& r = problem.request();
    auto* const ids = static_cast<std::int32_t*>(r.page_table.data);
    for (int page = 0; r.q.shape[0] == 2 && page < 2; ++page) ids[4 + page] = ids[page];
    const Status call = attention_shared_prefix(context, r, 32);
    ASSERT_TRUE(call.ok()) << call.message();
    const std::vector<unsigned char> expected = problem.output_bytes();
    problem.reset_outputs();
    const Status status = execute_shared_prefix(*plan, r, memory.launch);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(problem.output_bytes(), expected);
  }
}

TEST(SharedPrefix, WhatDoesNotFitAPlanIsRefusedBeforeAnythingIsWritten) {
  Context context;
  Problem problem = prefix_problem(kTwo);
  const AttentionRequest& r = problem.request();
  const Expected<SharedPrefixPlan> plan = plan_shared_prefix(context, describe(r).value(), 32);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::vector<unsigned char> out = problem.output_bytes();
  PlanMemory memory(plan->workspace_bytes());
  const auto expect = [&](const SharedPrefixPlan& given, const Buffers& buffers,
                          const Launch& launch, const std::string& fragment) {
    const Status status = execute_shared_prefix(given, buffers, launch);
    EXPECT_NE(status.message().find(fragment), std::string::npos) << status.message();
    EXPECT_EQ(problem.output_bytes(), out) << fragment;
  };
  expect({}, r, memory.launch, "empty plan, expected one of plan_shared_prefix()");
  expect(*plan, r, {}, "[execute_shared_prefix] workspace of 0 bytes, expected at least");
  Launch small = memory.launch;
  --small.workspace.bytes;
  expect(*plan, r, small, "[execute_shared_prefix] workspace of ");
  AttentionRequest changed = r;
  float sinks[4] = {};
  changed.sinks = make_view(sinks, Dtype::kF32, {4});
  expect(*plan, changed, memory.launch, "does not fit the plan");
  auto* const ids = static_cast<std::int32_t*>(r.page_table.data);
  std::swap(ids[5], ids[6]);
  expect(*plan, r, memory.launch, "[execute_shared_prefix] page_table[1,1]");
  std::swap(ids[5], ids[6]);
  auto* const lengths = static_cast<std::int32_t*>(r.seqlens_kv.data);
  const std::int32_t length = std::exchange(lengths[1], 31);
  expect(*plan, r, memory.launch, "seqlens_kv[1] (31), expected at least 32, shared_prefix_kv");
  lengths[1] = length;
  const Problem larger = prefix_problem(
      "b2 hq4 hkv2 sq9 skv64 d8 f32 paged page_size=16 append=9 causal diag=br "
      "lens_kv=50,45 lse");
  expect(*plan, larger.request(), memory.launch, "seqlen_q (9) does not fit the plan");
  EXPECT_TRUE(execute_shared_prefix(*plan, r, memory.launch).ok());
}

TEST(SharedPrefix, PlansAreRefusedAsTheCallIs) {
  Context context;
  const AttentionParams params = describe(prefix_problem(kTwo).request()).value();
  for (const std::int64_t shared : {-16, 17, 80}) {
    EXPECT_EQ(plan_shared_prefix(context, params, shared).status().code(),
              StatusCode::kInvalidArgument)
        << shared;
  }
  Problem problem = prefix_problem(kTwo);
  ASSERT_TRUE(attention(context, problem.request()).ok());
  const std::vector<unsigned char> expected = problem.output_bytes();
  const Expected<SharedPrefixPlan> none = plan_shared_prefix(context, params, 0);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->prefix().empty());
  problem.reset_outputs();
  PlanMemory memory(none->workspace_bytes());
  ASSERT_TRUE(execute_shared_prefix(*none, problem.request(), memory.launch).ok());
  EXPECT_EQ(problem.output_bytes(), expected);
}

TEST(SharedPrefix, ExplainRefusesWhatTheCallRefuses) {
  Context context;
  const AttentionParams params = describe(prefix_problem(kTwo).request()).value();
  for (const std::int64_t shared : {-16, 17, 80}) {
    EXPECT_EQ(explain_shared_prefix(context, params, shared).status().code(),
              StatusCode::kInvalidArgument)
        << shared;
  }
  const Expected<Selection> none = explain_shared_prefix(context, params, 0);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->prefix.empty());
  EXPECT_EQ(none->params, params);
}

}  // namespace
}  // namespace regard

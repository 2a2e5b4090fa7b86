#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "small_call.h"

namespace regard::test {
namespace {

TEST(CErrors, EveryNullIsNamed) {
  const ContextHandle handle = make_c_context();
  regard_context* const c = handle.get();
  SmallCall call;
  const regard_request* const r = &call.request;
  const PlanHandle made = make_c_plan(c, r);
  ASSERT_NE(made, nullptr);
  regard_plan* plan = made.get();
  char text[16];
  std::size_t bytes = 0;
  const regard_gradients g = regard_gradients_default();
  const regard_state no_out{nullptr, &call.tensors[0]};
  const regard_state no_lse{&call.tensors[0], nullptr};

  const auto expect = [](regard_status status, const std::string& message) {
    EXPECT_EQ(status, REGARD_STATUS_INVALID_ARGUMENT) << message;
    EXPECT_EQ(regard_last_error(), message + " (null) must be given");
  };
  expect(regard_context_create(nullptr), "[regard_context_create] context");
  expect(regard_context_set_policy(nullptr, nullptr), "[regard_context_set_policy] context");
  expect(regard_context_set_executor(nullptr, nullptr), "[regard_context_set_executor] context");
  int32_t workers = 0;
  expect(regard_context_set_concurrency(nullptr, 1), "[regard_context_set_concurrency] context");
  expect(regard_context_concurrency(nullptr, &workers), "[regard_context_concurrency] context");
  expect(regard_context_concurrency(c, nullptr), "[regard_context_concurrency] concurrency");
  expect(regard_describe(nullptr, text, 16, nullptr), "[regard_describe] request");
  expect(regard_describe_json(nullptr, text, 16, nullptr), "[regard_describe_json] request");
  expect(regard_explain(nullptr, r, nullptr, text, 16, nullptr), "[regard_explain] context");
  expect(regard_explain(c, nullptr, nullptr, text, 16, nullptr), "[regard_explain] request");
  expect(regard_explain_case(nullptr, "sq1 d1", nullptr, text, 16, nullptr),
         "[regard_explain_case] context");
  expect(regard_explain_case(c, nullptr, nullptr, text, 16, nullptr),
         "[regard_explain_case] words");
  expect(regard_plan_create(nullptr, r, nullptr, &plan), "[regard_plan_create] context");
  EXPECT_EQ(plan, nullptr);
  expect(regard_plan_create(c, nullptr, nullptr, &plan), "[regard_plan_create] request");
  expect(regard_plan_create(c, r, nullptr, nullptr), "[regard_plan_create] plan");
  expect(regard_plan_create_case(nullptr, "sq1 d1", nullptr, &plan),
         "[regard_plan_create_case] context");
  expect(regard_plan_create_case(c, nullptr, nullptr, &plan), "[regard_plan_create_case] words");
  expect(regard_plan_create_case(c, "sq1 d1", nullptr, nullptr), "[regard_plan_create_case] plan");
  expect(regard_plan_workspace_bytes(nullptr, &bytes), "[regard_plan_workspace_bytes] plan");
  expect(regard_plan_workspace_bytes(made.get(), nullptr), "[regard_plan_workspace_bytes] bytes");
  expect(regard_plan_backward_workspace_bytes(nullptr, &bytes),
         "[regard_plan_backward_workspace_bytes] plan");
  expect(regard_plan_backward_workspace_bytes(made.get(), nullptr),
         "[regard_plan_backward_workspace_bytes] bytes");
  expect(regard_plan_text(nullptr, text, 16, nullptr), "[regard_plan_text] plan");
  expect(regard_plan_explain(nullptr, text, 16, nullptr), "[regard_plan_explain] plan");
  expect(regard_execute(nullptr, r, nullptr), "[regard_execute] plan");
  expect(regard_execute(made.get(), nullptr, nullptr), "[regard_execute] request");
  expect(regard_attention(nullptr, r, nullptr, nullptr), "[regard_attention] context");
  expect(regard_attention(c, nullptr, nullptr, nullptr), "[regard_attention] request");
  expect(regard_execute_backward(nullptr, r, &g, nullptr), "[regard_execute_backward] plan");
  expect(regard_execute_backward(made.get(), nullptr, &g, nullptr),
         "[regard_execute_backward] request");
  expect(regard_execute_backward(made.get(), r, nullptr, nullptr),
         "[regard_execute_backward] gradients");
  expect(regard_attention_backward(nullptr, r, &g, nullptr, nullptr),
         "[regard_attention_backward] context");
  expect(regard_attention_backward(c, nullptr, &g, nullptr, nullptr),
         "[regard_attention_backward] request");
  expect(regard_attention_backward(c, r, nullptr, nullptr, nullptr),
         "[regard_attention_backward] gradients");
  expect(regard_merge_states(nullptr, 1, &call.tensors[3], nullptr),
         "[regard_merge_states] states");
  expect(regard_merge_states(&no_out, 1, &call.tensors[3], nullptr),
         "[regard_merge_states] states[0].out");
  expect(regard_merge_states(&no_lse, 1, &call.tensors[3], nullptr),
         "[regard_merge_states] states[0].lse");
  expect(regard_merge_states(nullptr, 0, nullptr, nullptr), "[regard_merge_states] out");

  EXPECT_EQ(regard_plan_backend(nullptr), nullptr);
  EXPECT_STREQ(regard_last_error(), "[regard_plan_backend] plan (null) must be given");
  EXPECT_EQ(regard_merge_states(nullptr, 0, &call.tensors[3], nullptr),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(), "[merge_states] states (none) must be at least 1");
  regard_plan_destroy(nullptr);
  EXPECT_TRUE(call.untouched());
}

TEST(CErrors, TheLastOneIsTheThreadsOwnAndStays) {
  EXPECT_EQ(regard_execute(nullptr, nullptr, nullptr), REGARD_STATUS_INVALID_ARGUMENT);
  const std::string mine = regard_last_error();
  std::string before, after;
  std::thread([&] {
    before = regard_last_error();
    (void)regard_describe(nullptr, nullptr, 0, nullptr);
    after = regard_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_NE(after, mine);
  SmallCall call;
  std::size_t needed = 0;
  EXPECT_EQ(regard_describe(&call.request, nullptr, 0, &needed), REGARD_STATUS_OK);
  EXPECT_EQ(regard_last_error(), mine);
}

TEST(CErrors, WordsOfAPolicyAreNamed) {
  const ContextHandle context = make_c_context();
  const auto refused = [&](auto change) {
    regard_policy policy = regard_policy_default();
    change(policy);
    const regard_status status = regard_context_set_policy(context.get(), &policy);
    return std::string(regard_status_name(status)) + " " + regard_last_error();
  };
  const std::string unknown = "[parse_backend] unknown backend \"";
  EXPECT_EQ(
      refused([](regard_policy& p) {
        p.only = "flash,fast";
      }).rfind("not_found [regard_context_set_policy] only of policy: " + unknown + "fast", 0),
      0u);
  EXPECT_EQ(refused([](regard_policy& p) {
              p.deny = "";
            }).rfind("not_found [regard_context_set_policy] deny of policy: " + unknown, 0),
            0u);
  EXPECT_EQ(refused([](regard_policy& p) {
              p.prefer = "math,";
            }).rfind("not_found [regard_context_set_policy] prefer of policy: " + unknown, 0),
            0u);
  EXPECT_EQ(refused([](regard_policy& p) { p.require = "always"; })
                .rfind("not_found [regard_context_set_policy] require of policy: "
                       "[parse_determinism] unknown level \"always\"",
                       0),
            0u);
  EXPECT_EQ(refused([](regard_policy& p) { p.on_fallback = "perhaps"; }),
            "invalid_argument [regard_context_set_policy] on_fallback of policy (\"perhaps\") must "
            "be allow, warn or error");
  const int32_t two = 2;
  EXPECT_EQ(refused([&](regard_policy& p) { p.assume_finite = &two; }),
            "invalid_argument [regard_context_set_policy] assume_finite of policy (2) must be 0 or "
            "1");
  EXPECT_EQ(refused([&](regard_policy& p) { p.self_check_deny = &two; }),
            "invalid_argument [regard_context_set_policy] self_check_deny of policy (2) must be 0 "
            "or 1");
  const double nan = std::nan("");
  EXPECT_EQ(refused([&](regard_policy& p) { p.max_error = &nan; }),
            "invalid_argument [regard_context_set_policy] max_error of policy (nan) must be at "
            "least 0");
  const std::int64_t negative = -1;
  EXPECT_EQ(refused([&](regard_policy& p) { p.max_workspace_bytes = &negative; }),
            "invalid_argument [regard_context_set_policy] max_workspace_bytes of policy (-1) must "
            "be at least 0");
  EXPECT_EQ(refused([&](regard_policy& p) { p.self_check = &negative; }),
            "invalid_argument [regard_context_set_policy] self_check of policy (-1) must be at "
            "least 0");
}

TEST(CErrors, EveryFieldOfAPolicyArrives) {
  const ContextHandle context = make_c_context();
  const double max_error = 0.5;
  const std::int64_t bytes = 1 << 20;
  const int32_t finite = 1;
  regard_policy policy = regard_policy_default();
  policy.only = "flash,math,custom:mine";
  policy.deny = "CUDNN_ATTENTION";
  policy.prefer = "math";
  policy.require = "batch_invariant";
  policy.on_fallback = "warn";
  policy.max_error = &max_error;
  policy.max_workspace_bytes = &bytes;
  policy.assume_finite = &finite;
  policy.self_check = &bytes;
  policy.self_check_deny = &finite;
  policy.self_check_dir = "/some/folder";
  const std::string json = text_of(
      [&](auto... out) { return regard_explain_case(context.get(), "sq4 d8", &policy, out...); });
  Policy expected;
  expected.only = {{BackendId::kFlash}, {BackendId::kMath}, {BackendId::kCustom, "mine"}};
  expected.deny = {{BackendId::kCudnn}};
  expected.prefer = {{BackendId::kMath}};
  expected.require = Determinism::kBatchInvariant;
  expected.on_fallback = OnFallback::kWarn;
  expected.max_error = 0.5;
  expected.max_workspace_bytes = 1 << 20;
  expected.assume_finite = true;
  expected.self_check = 1 << 20;
  expected.self_check_deny = true;
  expected.self_check_dir = "/some/folder";
  EXPECT_NE(json.find("\"policy\":" + to_json(expected)), std::string::npos) << json;
}

TEST(CErrors, ExecutorsNeedAFunction) {
  const ContextHandle context = make_c_context();
  SmallCall call;
  regard_executor executor = {nullptr, &call};
  EXPECT_EQ(regard_context_set_executor(context.get(), &executor), REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(),
               "[regard_context_set_executor] run of executor (null) must be given");
  regard_launch launch = regard_launch_default();
  launch.executor = executor;
  EXPECT_EQ(regard_attention(context.get(), &call.request, nullptr, &launch),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(),
               "[regard_attention] run of launch's executor (null) must be given with its user");
}

TEST(CErrors, WhatAnExecutorThrowsIsAFailure) {
  const ContextHandle context = make_c_context();
  SmallCall call(256);  // enough work for an executor
  regard_policy policy = only_policy("math");
  regard_launch launch = regard_launch_default();
  launch.executor.run = [](void*, int32_t, regard_task, void*) {
    throw std::runtime_error("no threads");
  };
  EXPECT_EQ(regard_attention(context.get(), &call.request, &policy, &launch),
            REGARD_STATUS_INTERNAL);
  EXPECT_STREQ(regard_last_error(), "[execute] math or its executor threw: no threads");
  launch.executor.run = [](void*, int32_t, regard_task, void*) { throw 7; };
  EXPECT_EQ(regard_attention(context.get(), &call.request, &policy, &launch),
            REGARD_STATUS_INTERNAL);
  EXPECT_STREQ(regard_last_error(), "[execute] math or its executor threw: no std::exception");
}

TEST(CErrors, WordsOfACaseAreNamed) {
  const ContextHandle context = make_c_context();
  regard_plan* plan = nullptr;
  EXPECT_EQ(regard_plan_create_case(context.get(), "sq4", nullptr, &plan),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(regard_last_error()).rfind("[parse_case]", 0), 0u) << regard_last_error();
  EXPECT_EQ(regard_plan_create_case(context.get(), "sq4 d8 isa=scalar", nullptr, &plan),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(),
               "[regard_plan_create_case] words (\"b1 hq1 hkv1 sq4 skv4 d8 f32 isa=scalar\") must "
               "not name another machine: a plan is for this one");
  EXPECT_EQ(regard_plan_create_case(context.get(), "sq4 d8 i32", nullptr, &plan),
            REGARD_STATUS_NO_BACKEND);
  EXPECT_EQ(plan, nullptr);
}

}  // namespace
}  // namespace regard::test

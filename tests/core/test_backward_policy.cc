// A policy of attention_backward: it restricts what may compute the backward.

#include <gtest/gtest.h>

#include <string>

#include "grad_call.h"
#include "mock_backend.h"
#include "tests/support/scratch.h"

namespace regard::test {
namespace {

// A forward that was planned on a mock, and its backward.
struct Trained {
  explicit Trained(const BackendInfo& info = generous_info("mock"))
      : mock(std::make_shared<MockBackend>(info)) {
    add_backend(context, "mock", mock);
  }
  void plan_forward(const Policy& policy = only({custom("mock")})) {
    AttentionRequest forward = call.request;
    forward.options.needs_grad = true;
    call.request.saved.plan = plan(context, describe(forward).value(), policy).value();
  }
  Status run(const Policy& policy, const Launch& launch = {}) {
    return attention_backward(context, call.request, policy, launch);
  }
  // The reasons of one backend in the Selection of a failure.
  std::string refusals(const Policy& policy, const BackendRef& ref = custom("mock")) {
    const Status status = run(policy);
    EXPECT_EQ(status.code(), StatusCode::kNoBackend) << status.to_string();
    EXPECT_TRUE(call.untouched());
    if (status.selection() == nullptr) return "no selection";
    const Verdict* const verdict = status.selection()->find(ref);
    std::string codes;
    for (const Refusal& refusal : verdict->refusals) {
      codes += (codes.empty() ? "" : " ") + std::string(to_string(refusal.code));
    }
    return codes;
  }

  Context context{described_env()};
  std::shared_ptr<MockBackend> mock;
  GradCall call;
};

Policy max_bytes(std::int64_t bytes) {
  Policy policy;
  policy.max_workspace_bytes = bytes;
  return policy;
}

TEST(BackwardPolicy, WithoutAPlanItSelects) {
  Trained trained;
  ASSERT_TRUE(trained.run(only({custom("mock")})).ok());
  EXPECT_EQ(trained.mock->backward_executions, 1);
  ASSERT_TRUE(trained.run(deny({custom("mock")})).ok());
  EXPECT_EQ(trained.mock->backward_executions, 1);
  EXPECT_TRUE(trained.call.right());
}

TEST(BackwardPolicy, WithoutAPlanNothingLeftIsAnErrorWithAllReasons) {
  Trained trained;
  EXPECT_EQ(trained.refusals(only({kCudnn}), kMath), "not_in_only");
  // A build without CUDA says so, too.
  EXPECT_NE(trained.refusals(only({kCudnn}), kCudnn).find("device"), std::string::npos);
  EXPECT_EQ(trained.mock->backward_executions, 0);
}

TEST(BackwardPolicy, WithoutAPlanTheKindOfStatisticsBinds) {
  BackendInfo info = generous_info("mock");
  info.backward.features.set(Feature::kLse, false);
  Trained trained(info);
  ASSERT_TRUE(trained.run(only({custom("mock")})).ok());
  trained.call = GradCall();
  trained.call.request.saved.kind = SavedContext::Kind::kLse;
  trained.call.request.saved.stats = make_view(trained.call.stats.data(), {1, 2, 4});
  EXPECT_EQ(trained.refusals(only({custom("mock")})), "feature");
}

TEST(BackwardPolicy, ThePlansBackendMustBeAllowed) {
  Trained trained;
  trained.plan_forward();
  EXPECT_EQ(trained.refusals(only({kMath})), "not_in_only");
  EXPECT_EQ(trained.refusals(only({kMath}), kMath), "not_in_only");
  EXPECT_EQ(trained.refusals(deny({custom("mock")})), "denied");
  EXPECT_EQ(trained.refusals(deny({custom("mock")}), kMath), "not_in_only");
  EXPECT_NE(
      trained.run(only({kMath, kFlash}))
          .message()
          .find("the forward ran on custom:mock, and only of call policy (math,flash) leaves it "
                "out"),
      std::string::npos)
      << trained.run(only({kMath, kFlash})).message();
  EXPECT_EQ(trained.mock->backward_executions, 0);
  ASSERT_TRUE(trained.run(only({kMath, custom("mock")})).ok());
  ASSERT_TRUE(trained.run(deny({kMath})).ok());
  EXPECT_EQ(trained.mock->backward_executions, 2);
}

TEST(BackwardPolicy, WhatIsRequiredOfThePlansBackend) {
  BackendInfo info = generous_info("mock");
  info.determinism = Determinism::kRunToRun;
  info.forward.dtypes[0].error_bound = 1e-2;  // f32
  info.backward.dtypes[0].error_bound = 1e-4;
  Trained trained(info);
  trained.plan_forward();
  Policy policy;
  policy.require = Determinism::kBatchInvariant;
  EXPECT_EQ(trained.refusals(policy), "determinism");
  policy.require = Determinism::kRunToRun;
  EXPECT_TRUE(trained.run(policy).ok());
  policy.max_error = 1e-3;
  EXPECT_TRUE(trained.run(policy).ok());
  trained.call = GradCall();
  trained.plan_forward();
  policy.max_error = 1e-5;
  EXPECT_EQ(trained.refusals(policy), "error_bound");
}

// The forward has run: its workspace is nobody's concern.
TEST(BackwardPolicy, ALimitHoldsForTheBackwardAlone) {
  Trained trained;
  trained.mock->workspace = 1 << 20;
  trained.mock->backward_workspace = 256;
  trained.plan_forward();
  EXPECT_EQ(trained.refusals(max_bytes(128)), "workspace");
  EXPECT_TRUE(trained.run(max_bytes(256)).ok());
  Policy pair = only({custom("mock")});
  pair.max_workspace_bytes = 256;
  AttentionRequest forward = trained.call.request;
  forward.options.needs_grad = true;
  EXPECT_EQ(plan(trained.context, describe(forward).value(), pair).status().code(),
            StatusCode::kNoBackend);
}

TEST(BackwardPolicy, ALimitPlansTheBackwardWithFewerBytes) {
  Trained trained;
  trained.call = GradCall(256, 8, 64);
  trained.plan_forward(only({kFlash}));
  const std::int64_t most = trained.call.request.saved.plan.backward_workspace_bytes();
  Scratch scratch(most * 3 / 4 / 64 * 64);
  EXPECT_EQ(trained.run({}, scratch.launch).code(), StatusCode::kWorkspace);
  const auto bytes = static_cast<std::int64_t>(scratch.launch.workspace.bytes);
  const Status status = trained.run(max_bytes(bytes), scratch.launch);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(BackwardPolicy, WhatTheForwardsPolicyLimitedStaysSo) {
  Trained trained;
  trained.call = GradCall(256, 8, 64);
  trained.plan_forward(only({kFlash}));
  Policy limited = only({kFlash});
  limited.max_workspace_bytes =
      trained.call.request.saved.plan.backward_workspace_bytes() * 3 / 4 / 64 * 64;
  trained.plan_forward(limited);
  Scratch scratch(*limited.max_workspace_bytes);
  Policy other;
  other.require = Determinism::kBatchInvariant;
  const Status status = trained.run(other, scratch.launch);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(BackwardPolicy, ScopesHaveNoSayInAPlannedBackward) {
  Trained trained;
  trained.plan_forward();
  trained.context.set_policy(only({kFlash}));
  const ScopedPolicy scope(deny({custom("mock")}));
  ASSERT_TRUE(trained.run(only({custom("mock")})).ok());
  EXPECT_EQ(trained.mock->backward_executions, 1);
}

// There is nothing to prefer, and no preference to miss.
TEST(BackwardPolicy, APlanLeavesNothingToPrefer) {
  Trained trained;
  trained.plan_forward();
  Policy policy = prefer({kMath});
  policy.on_fallback = OnFallback::kError;
  policy.assume_finite = true;
  ASSERT_TRUE(trained.run(policy).ok());
  EXPECT_EQ(trained.mock->backward_executions, 1);
}

TEST(BackwardPolicy, OneThatIsNotValidIsRefused) {
  Trained trained;
  Policy policy;
  policy.max_error = -1.0;
  for (const bool planned : {false, true}) {
    if (planned) trained.plan_forward();
    const Status status = trained.run(policy);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("max_error of policy (-1)"), std::string::npos)
        << status.message();
  }
  EXPECT_TRUE(trained.call.untouched());
}

TEST(BackwardPolicy, TheSecondCallFindsItsPlan) {
  Trained trained;
  trained.plan_forward();
  ASSERT_TRUE(trained.run(max_bytes(1 << 20)).ok());
  const std::uint64_t misses = trained.context.plan_cache_counters().misses;
  ASSERT_TRUE(trained.run(max_bytes(1 << 20)).ok());
  EXPECT_EQ(trained.context.plan_cache_counters().misses, misses);
}

}  // namespace
}  // namespace regard::test

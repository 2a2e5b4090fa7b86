// What a backward will be given decides where its forward runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/problem.h"
#include "conformance/rng.h"
#include "grad_call.h"
#include "mock_backend.h"
#include "tests/support/scratch.h"

namespace regard::test {
namespace {

constexpr Feature kGiven[] = {Feature::kSavedStats, Feature::kLse, Feature::kDLse, Feature::kDelta};

BackendInfo taking(FeatureSet given) {
  BackendInfo info = generous_info("mock");
  for (const Feature f : kGiven) info.backward.features.set(f, given.has(f));
  return info;
}

// A context whose last candidate is a mock with such a backward.
struct WithBackward {
  explicit WithBackward(FeatureSet given)
      : mock(std::make_shared<MockBackend>(taking(given))), policy(only({custom("mock")})) {
    add_backend(context, "mock", mock);
  }
  Context context{described_env()};
  std::shared_ptr<MockBackend> mock;
  Policy policy;
};

TEST(BackwardGiven, AForwardStatesIt) {
  WithBackward on({Feature::kLse});
  const auto refused = [&](const char* words) {
    const Selection selection = explain(on.context, case_params(words), on.policy);
    const std::vector<Refusal>& refusals = selection.find(custom("mock"))->refusals;
    return refusals.empty() ? "" : to_string(refusals[0]);
  };
  EXPECT_EQ(refused("sq8 d8 f32 grad lse"), "");
  EXPECT_EQ(refused("sq8 d8 f32 grad lse d_lse"),
            "does not support d_lse in a backward; remove it");
  EXPECT_EQ(refused("sq8 d8 f32 grad lse delta"),
            "does not support delta in a backward; remove it");
  EXPECT_EQ(refused("sq8 d8 f32 grad saved"),
            "does not support saved_stats in a backward; remove it");
  EXPECT_EQ(refused("sq8 d8 f32 saved"), "");
}

TEST(BackwardGiven, WithoutABackwardItMeansNothing) {
  EXPECT_FALSE(parse_case("sq8 d8 f32 d_lse").ok());
  GradCall call;
  call.request.options.delta = true;
  EXPECT_EQ(describe(call.request).status().message(),
            "[describe] delta (true) is given to a backward: needs_grad must be true");
  AttentionParams params = case_params("sq8 d8 f32 grad d_lse delta");
  EXPECT_TRUE(params.features.has(Feature::kDLse) && params.features.has(Feature::kDelta));
  params.features.set(Feature::kNeedsGrad, false);
  canonicalize(params);
  EXPECT_FALSE(params.features.has(Feature::kDLse) || params.features.has(Feature::kDelta));
}

TEST(BackwardGiven, WhatTheBackwardDoesNotTakeIsRefusedByName) {
  WithBackward on({Feature::kLse, Feature::kSavedStats});
  GradCall call;
  AttentionRequest forward = call.request;
  forward.options.needs_grad = true;
  const Plan pair = plan_for(on.context, forward, on.policy);
  const std::vector<float> rows(8);
  call.request.d_lse = make_view(rows.data(), {1, 2, 4});
  const Status status = execute_backward(pair, call.request, call.request);
  EXPECT_EQ(status.message(),
            "[execute_backward] d_lse (given) is not supported by the backward of custom:mock: "
            "plan the forward with options.d_lse, which chooses a backend that supports it");
  EXPECT_EQ(on.mock->backward_executions, 0);
}

// The gradient inputs of one draw, as features.
FeatureSet given_by(const AttentionGradRequest& request) {
  FeatureSet given;
  given.set(Feature::kSavedStats, request.saved.kind == SavedContext::Kind::kStats);
  given.set(Feature::kLse, request.saved.kind == SavedContext::Kind::kLse);
  given.set(Feature::kDLse, request.d_lse.present());
  given.set(Feature::kDelta, request.delta.present());
  return given;
}

// Whether the pair is planned for the backend; its backward must then run.
bool runs(Context& context, conformance::Problem& problem, const BackendRef& ref) {
  const AttentionGradRequest& request = problem.request();
  Policy policy = only({ref});
  policy.assume_finite = true;
  const Expected<Plan> made = plan(context, describe(request).value(), policy);
  if (!made) return false;
  problem.reset_outputs();
  Scratch scratch(std::max(made->workspace_bytes(), made->backward_workspace_bytes()));
  EXPECT_TRUE(execute(*made, request, scratch.launch).ok());
  problem.begin_backward();
  const Status status = execute_backward(*made, request, request, scratch.launch);
  EXPECT_TRUE(status.ok()) << to_string(ref) << ": " << status.to_string() << "\n"
                           << to_string(problem.source());
  return true;
}

// Random forwards with random gradient inputs, on every CPU backend and on mocks with random
// records: a selected pair runs, and a record decides alone what is selected.
TEST(BackwardGiven, ASelectedPairRunsItsBackward) {
  Context builtin(described_env());
  conformance::Rng rng(29, 0);
  int ran = 0, refused = 0, stated = 0;
  for (std::uint64_t n = 0; n < 300; ++n) {
    const Case c = conformance::random_grad_case(29, n);
    conformance::Problem problem = conformance::make_problem(c, {});
    const FeatureSet given = given_by(problem.request());
    stated += given.has(Feature::kDLse) || given.has(Feature::kDelta) ? 1 : 0;
    for (const BackendRef& ref : {kFlash, kEfficient, kMath}) {
      ran += runs(builtin, problem, ref) ? 1 : 0;
    }
    FeatureSet record;
    for (const Feature f : kGiven) record.set(f, rng.chance(0.7));
    WithBackward on(record);
    const bool mixed =
        c.params.dtype_q != c.params.dtype_k || c.params.dtype_q != c.params.dtype_out;
    if (mixed || is_f8(c.params.dtype_q)) continue;  // no type of the mock's
    const bool selected = runs(on.context, problem, custom("mock"));
    EXPECT_EQ(selected, given.without(record).empty()) << to_string(c);
    refused += selected ? 0 : 1;
  }
  EXPECT_GT(ran, 500);
  EXPECT_GT(refused, 50);
  EXPECT_GT(stated, 80);
}

}  // namespace
}  // namespace regard::test

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "grad_call.h"
#include "mock_backend.h"
#include "tests/support/scratch.h"

// Selection and planning of a forward with its backward, and what a backward call is held to.

namespace regard::test {
namespace {

bool refuses(const Selection& selection, const BackendRef& ref, RefusalCode code) {
  for (const Refusal& refusal : selection.find(ref)->refusals) {
    if (refusal.code == code) return true;
  }
  return false;
}

// ---- selection by direction

TEST(Pair, ABackendWithoutBackwardIsRefusedForBothDirections) {
  BackendInfo info = generous_info("mock");
  info.backward.offered = false;
  Context context(described_env());
  add_backend(context, "mock", std::make_shared<MockBackend>(info));
  const Policy policy = prefer({custom("mock")});
  EXPECT_EQ(explain(context, case_params("sq8 d8 f32"), policy).chosen, custom("mock"));
  const Selection selection = explain(context, case_params("sq8 d8 f32 grad"), policy);
  EXPECT_EQ(selection.chosen, kFlash);
  EXPECT_TRUE(refuses(selection, custom("mock"), RefusalCode::kDirection)) << to_string(selection);
  EXPECT_EQ(selection.find(custom("mock"))->backward_workspace_bytes, -1);
  for (const BackendRef& ref : {kFlash, kEfficient, kMath}) {
    EXPECT_GT(selection.find(ref)->backward_workspace_bytes, 0);
  }
  EXPECT_NE(to_string(selection).find("  backward "), std::string::npos);
}

TEST(Pair, BackwardHasClaimsOfItsOwn) {
  BackendInfo info = generous_info("mock");
  info.backward.features =
      info.backward.features.without({Feature::kSoftcap, Feature::kLse, Feature::kSavedStats});
  info.backward.head_dim_qk = {1, 64, 1};
  Context context(described_env());
  add_backend(context, "mock", std::make_shared<MockBackend>(info));
  const auto chosen = [&](const char* text) {
    return explain(context, case_params(text), prefer({custom("mock")})).chosen;
  };
  EXPECT_EQ(chosen("sq8 d128 f32 softcap=2"), custom("mock"));
  EXPECT_EQ(chosen("sq8 d64 f32 grad"), custom("mock"));
  EXPECT_EQ(chosen("sq8 d64 f32 grad softcap=2"), kFlash);
  EXPECT_EQ(chosen("sq8 d128 f32 grad"), kFlash);
  // What the forward writes and the backward is not given is not the backward's to claim.
  EXPECT_EQ(chosen("sq8 d64 f32 grad scores=probs"), custom("mock"));
  EXPECT_EQ(chosen("sq8 d64 f32 grad saved"), kFlash);
  EXPECT_EQ(chosen("sq8 d64 f32 grad lse"), kFlash);
  // Whose limit it is stands in the refusal.
  const Selection selection = explain(context, case_params("sq8 d128 f32 grad softcap=2"));
  const std::vector<Refusal>& refusals = selection.find(custom("mock"))->refusals;
  ASSERT_EQ(refusals.size(), 2u);
  EXPECT_EQ(to_string(refusals[0]), "does not support softcap in a backward; remove it");
  EXPECT_EQ(to_string(refusals[1]),
            "supports head_dim_qk 1 to 64 in a backward, got 128; reduce it to 64");
}

TEST(Pair, ThePlanStatesBothWorkspaces) {
  Context context(described_env());
  auto mock = std::make_shared<MockBackend>(generous_info("mock"));
  mock->workspace = 64;
  mock->backward_workspace = 256;
  add_backend(context, "mock", mock);
  const Policy policy = only({custom("mock")});
  const Plan pair = plan(context, case_params("sq8 d8 f32 grad"), policy).value();
  EXPECT_EQ(pair.workspace_bytes(), 64);
  EXPECT_EQ(pair.backward_workspace_bytes(), 256);
  EXPECT_EQ(pair.backward_kernel().kernel, "mock_backward");
  EXPECT_NE(pair.to_string().find("; backward mock_backward"), std::string::npos);
  const Plan forward = plan(context, case_params("sq8 d8 f32"), policy).value();
  EXPECT_EQ(forward.backward_workspace_bytes(), 0);
  EXPECT_EQ(forward.backward_kernel().kernel, "");
  EXPECT_EQ(forward.to_string().find("backward"), std::string::npos);

  // The limit holds the greater: the two are never in use at once.
  for (const std::int64_t limit : {255, 256}) {
    Policy limited = policy;
    limited.max_workspace_bytes = limit;
    EXPECT_TRUE(plan(context, case_params("sq8 d8 f32"), limited).ok());
    EXPECT_EQ(plan(context, case_params("sq8 d8 f32 grad"), limited).ok(), limit == 256);
  }
}

TEST(Pair, ABackwardRefusedAtPlanTimeIsLearned) {
  Context context(described_env());
  auto mock = std::make_shared<MockBackend>(generous_info("mock"));
  mock->refuse_backward = true;
  add_backend(context, "mock", mock);
  const Policy policy = prefer({custom("mock")});
  const Plan made = plan(context, case_params("sq8 d8 f32 grad"), policy).value();
  EXPECT_EQ(made.backend(), kFlash);
  EXPECT_TRUE(refuses(made.selection(), custom("mock"), RefusalCode::kLearned));
}

TEST(Pair, ABackwardPlanMustStateItsWorkspace) {
  class Misstating : public MockBackend {
   public:
    using MockBackend::MockBackend;
    std::int64_t backward_workspace_bytes(const AttentionKey&, const Env&) const override {
      return 128;
    }
  };
  Context context(described_env());
  add_backend(context, "mock", std::make_shared<Misstating>(generous_info("mock")));
  const auto made = plan(context, case_params("sq8 d8 f32 grad"), only({custom("mock")}));
  EXPECT_EQ(made.status().code(), StatusCode::kInternal);
  EXPECT_NE(made.status().message().find("stated 128"), std::string::npos);
}

// A backend from before there were gradients, but for its record.
class OffersOnly : public Backend {
 public:
  const BackendInfo& info() const override { return info_; }
  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return 0; }
  Expected<KernelPlan> plan(const AttentionKey&, const Env&) const override { return KernelPlan{}; }
  Status execute(const KernelPlan&, const AttentionParams&, const Buffers&,
                 const Launch&) const override {
    return {};
  }

 private:
  BackendInfo info_ = generous_info("offers");
};

TEST(Pair, TheDefaultsRefuse) {
  Context context(described_env());
  add_backend(context, "offers", std::make_shared<OffersOnly>());
  const Policy policy = only({custom("offers")});
  EXPECT_TRUE(plan(context, case_params("sq8 d8 f32"), policy).ok());
  const auto made = plan(context, case_params("sq8 d8 f32 grad"), policy);
  EXPECT_EQ(made.status().code(), StatusCode::kInternal);
  EXPECT_NE(made.status().message().find("[plan_backward] custom:offers"), std::string::npos);
  const Status status = OffersOnly().execute_backward({}, {}, {}, {}, {});
  EXPECT_NE(status.message().find("[execute_backward] custom:offers"), std::string::npos);
}

// ---- calls

Plan pair_for(Context& context, const AttentionRequest& request, const Policy& policy = {}) {
  AttentionRequest forward = request;
  forward.options.needs_grad = true;
  return plan_for(context, forward, policy);
}

TEST(Backward, OneCallPlansLeasesAndComputes) {
  Context context(described_env());
  GradCall call;
  const Status status = attention_backward(context, call.request);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(call.right());
  EXPECT_GT(context.leased_workspace_bytes(), 0);
}

TEST(Backward, APlanServesAnyExtentsUpToItsOwn) {
  Context context(described_env());
  const Plan pair = pair_for(context, GradCall(8).request);
  Scratch scratch(pair.backward_workspace_bytes());
  for (const std::int64_t seqlen : {8, 5, 1, 0}) {
    GradCall call(seqlen);
    const Status status = execute_backward(pair, call.request, call.request, scratch.launch);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(call.right()) << seqlen;
  }
  GradCall larger(9);
  const Status status = execute_backward(pair, larger.request, larger.request, scratch.launch);
  EXPECT_NE(status.message().find("[execute_backward] seqlen_q (9) does not fit the plan"),
            std::string::npos)
      << status.message();
  EXPECT_TRUE(larger.untouched());
}

TEST(Backward, ThePairsPlanHoldsWhateverThePolicyIsNow) {
  Context context(described_env());
  auto mock = std::make_shared<MockBackend>(generous_info("mock"));
  add_backend(context, "mock", mock);
  GradCall call;
  call.request.saved.plan = pair_for(context, call.request, only({kMath}));
  const ScopedPolicy scope(only({custom("mock")}));
  ASSERT_TRUE(attention_backward(context, call.request).ok());
  EXPECT_TRUE(call.right());
  EXPECT_EQ(mock->backward_executions, 0);
  call.request.saved.plan = {};
  ASSERT_TRUE(attention_backward(context, call.request).ok());
  EXPECT_EQ(mock->backward_executions, 1);
}

TEST(Backward, TheForwardsOtherOutputsAreNotItsOwn) {
  Context context(described_env());
  auto mock = std::make_shared<MockBackend>(generous_info("mock"));
  add_backend(context, "mock", mock);
  GradCall call;
  call.request.saved_stats = call.request.saved.stats;  // as a copied forward request has it
  call.request.saved.plan = pair_for(context, call.request, only({custom("mock")}));
  for (const bool present : {true, false}) {
    if (!present) call.request.saved_stats = {};
    mock->saw_outputs = true;
    const Status status = attention_backward(context, call.request);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_FALSE(mock->saw_outputs);
  }
  // Nor is what the forward was asked for, or where its outputs lie.
  call.request.options.scores_kind = ScoresKind::kProbs;
  call.request.lse = make_view(call.data.data(), {1, 2, 4});
  const Status status = attention_backward(context, call.request);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Backward, APlanWithoutGradientsIsRefused) {
  Context context(described_env());
  GradCall call;
  const Plan forward = plan(context, describe(call.request).value()).value();
  for (const Plan& wrong : {Plan(), forward}) {
    Status status = execute_backward(wrong, call.request, call.request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("[execute_backward]", 0), 0u) << status.message();
  }
  call.request.saved.plan = forward;
  EXPECT_NE(attention_backward(context, call.request).message().find("made with needs_grad"),
            std::string::npos);
  EXPECT_TRUE(call.untouched());
}

TEST(Backward, AWorkspaceMustBeLargeEnoughAndAligned) {
  Context context(described_env());
  GradCall call;
  const Plan pair = pair_for(context, call.request);
  ASSERT_GT(pair.backward_workspace_bytes(), 0);
  Scratch scratch(pair.backward_workspace_bytes());
  Launch launch = scratch.launch;
  launch.workspace.bytes -= 1;
  const auto code = [&] {
    return execute_backward(pair, call.request, call.request, launch).code();
  };
  EXPECT_EQ(code(), StatusCode::kWorkspace);
  EXPECT_EQ(attention_backward(context, call.request, {}, launch).code(), StatusCode::kWorkspace);
  launch = scratch.launch;
  launch.workspace.data = static_cast<char*>(launch.workspace.data) - 32;
  EXPECT_EQ(code(), StatusCode::kWorkspace);
  launch = {};
  EXPECT_EQ(code(), StatusCode::kWorkspace);
  EXPECT_TRUE(call.untouched());
}

TEST(Backward, LengthsAreCheckedBeforeAnythingIsWritten) {
  Context context(described_env());
  GradCall call;
  std::int32_t length = 5;
  call.request.seqlens_q = make_view(&length, Dtype::kI32, {1});
  const Status status = attention_backward(context, call.request);
  EXPECT_NE(status.message().find("[execute_backward] seqlens_q[0] (5), expected 0 to 4"),
            std::string::npos)
      << status.message();
  EXPECT_TRUE(call.untouched());
}

struct Wrong {
  std::function<void(GradCall&)> make;
  const char* text;
};

TEST(Backward, EveryWrongTensorIsNamedWithWhatWasExpected) {
  const auto reshaped = [](TensorView view, int dim, std::int64_t extent) {
    view.shape[dim] = extent;
    return view;
  };
  const std::vector<Wrong> table = {
      {[](GradCall& c) { c.request.saved.kind = SavedContext::Kind::kNone; },
       "saved.kind (0) must be 1 (saved.stats are saved_stats) or 2 (they are lse)"},
      {[](GradCall& c) { c.request.saved.stats = {}; }, "saved.stats"},
      {[](GradCall& c) { c.request.saved.kind = SavedContext::Kind::kLse; },
       "rank of saved.stats (4) must be 3, [B,Hq,Sq]"},
      {[](GradCall& c) { c.request.saved.stats.dtype = Dtype::kF64; },
       "dtype of saved.stats (f64) must be f32"},
      {[&](GradCall& c) { c.request.saved.stats = reshaped(c.request.saved.stats, 2, 3); },
       "shape of saved.stats ([1,2,3,2]) must be [1,2,4,2], [B,Hq,Sq,2]"},
      {[](GradCall& c) { c.request.d_out = {}; }, "d_out"},
      {[](GradCall& c) { c.request.d_out.dtype = Dtype::kBf16; },
       "dtype of d_out (bf16) must be out's, f32"},
      {[&](GradCall& c) { c.request.d_out = reshaped(c.request.d_out, 3, 4); },
       "must have the shape of out"},
      {[](GradCall& c) { c.request.d_out.strides[3] = 2; }, "last stride of d_out (2) must be 1"},
      {[](GradCall& c) { c.request.d_out.data = nullptr; }, "data of d_out (null)"},
      {[](GradCall& c) { c.request.delta = c.request.d_out; },
       "rank of delta (4) must be 3, [B,Hq,Sq]"},
      {[](GradCall& c) {
         c.request.d_lse = make_view(c.ones.data(), {1, 2, 5});
       },
       "shape of d_lse ([1,2,5]) must be [1,2,4], [B,Hq,Sq]"},
      {[&](GradCall& c) { c.request.d_q = reshaped(c.request.d_q, 1, 1); },
       "must have the shape of q"},
      {[](GradCall& c) { c.request.d_k.dtype = Dtype::kF64; },
       "dtype of d_k (f64) must be k's, f32"},
      {[](GradCall& c) { c.request.d_v.strides[3] = 2; }, "last stride of d_v (2) must be 1"},
      {[](GradCall& c) { c.request.d_v.strides[1] = -1; }, "stride 1 of d_v (-1) must be >= 0"},
      {[](GradCall& c) { c.request.attn_bias = {}; },
       "attn_bias (absent) must be given with d_bias"},
      {[&](GradCall& c) { c.request.d_bias = reshaped(c.request.d_bias, 3, 1); },
       "must have the shape of attn_bias"},
      {[](GradCall& c) { c.request.sinks = {}; }, "sinks (absent) must be given with d_sinks"},
      {[](GradCall& c) { c.request.d_sinks.device.type = DeviceType::kCuda; },
       "device of d_sinks (cuda:0) must be q's, cpu:0"},
      {[](GradCall& c) { c.request.d_q.data = c.data.data(); }, "must not overlap q"},
      {[](GradCall& c) { c.request.d_k.data = c.ones.data(); }, "must not overlap d_out"},
      {[](GradCall& c) { c.request.d_v.data = c.out.data(); }, "must not overlap out"},
      {[](GradCall& c) { c.request.d_sinks.data = c.stats.data(); },
       "must not overlap saved.stats"},
      {[](GradCall& c) { c.request.d_v.data = c.d_k.data(); }, "must not overlap d_v"},
      {[](GradCall& c) { c.request.d_q.strides[1] = 0; }, "must not overlap itself"},
      {[](GradCall& c) {
         c.request.options.dropout_p = 0.5;
         c.request.rng_seed = 3;
       },
       "rng_seed (3) must be saved.rng_seed, 0"},
      {[](GradCall& c) {
         c.request.options.dropout_p = 0.5;
         c.request.saved.rng_offset = 4;
       },
       "rng_offset (0) must be saved.rng_offset, 4"},
      {[](GradCall& c) { c.request.out.dtype = Dtype::kI8; }, ""},
  };
  Context context(described_env());
  for (const Wrong& wrong : table) {
    GradCall call;
    call.add_edits();
    ASSERT_TRUE(attention_backward(context, call.request).ok());
    GradCall bad;
    bad.add_edits();
    wrong.make(bad);
    const Status status = attention_backward(context, bad.request);
    EXPECT_FALSE(status.ok()) << wrong.text;
    EXPECT_NE(status.message().find(wrong.text), std::string::npos)
        << status.message() << "\nexpected: " << wrong.text;
    EXPECT_TRUE(bad.untouched()) << wrong.text;
  }
}

TEST(Backward, EveryGradientIsOptional) {
  Context context(described_env());
  using Output = TensorView GradBuffers::*;
  for (const Output kept : {&GradBuffers::d_q, &GradBuffers::d_k, &GradBuffers::d_v,
                            &GradBuffers::d_bias, &GradBuffers::d_sinks}) {
    GradCall all, one;
    all.add_edits();
    one.add_edits();
    const TensorView view = one.request.*kept;
    one.request.d_q = one.request.d_k = one.request.d_v = {};
    one.request.d_bias = one.request.d_sinks = {};
    ASSERT_TRUE(attention_backward(context, one.request).ok());
    EXPECT_TRUE(one.untouched());
    one.request.*kept = view;
    ASSERT_TRUE(attention_backward(context, all.request).ok());
    ASSERT_TRUE(attention_backward(context, one.request).ok());
    EXPECT_FALSE(one.untouched());
    const auto same_or_untouched = [&](const std::vector<float>& a, const std::vector<float>& b) {
      return a == b || a == std::vector<float>(a.size(), 7.0f);
    };
    EXPECT_TRUE(same_or_untouched(one.d_q, all.d_q) && same_or_untouched(one.d_k, all.d_k) &&
                same_or_untouched(one.d_v, all.d_v) && same_or_untouched(one.d_bias, all.d_bias) &&
                same_or_untouched(one.d_sinks, all.d_sinks));
  }
}

}  // namespace
}  // namespace regard::test

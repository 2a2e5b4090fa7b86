#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "conformance/memory.h"
#include "conformance/problem.h"
#include "oracle/number.h"
#include "regard/attention.h"
#include "tests/support/backends.h"
#include "tests/support/tensors.h"

// Gradients of padded sequences: with lengths, with a mask or packed.

namespace regard::test {
namespace {

using conformance::Problem;

constexpr std::int64_t kBatch = 4, kSeqlen = 7;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Mask = std::vector<std::uint8_t>;  // [kBatch, kSeqlen]
// Odd lengths, a sequence without rows, a full one.
const Mask kRight = {1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
const Mask kLeft = {0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0,
                    1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1};
const Mask kHoles = {1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
                     0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1};

Lengths lengths_of(const Mask& mask) {
  return Lengths::from_mask(make_view(mask.data(), Dtype::kU8, {kBatch, kSeqlen})).value();
}

Problem problem_of(const std::string& words, bool dense = true) {
  const Expected<Case> c = parse_case("b4 hq4 hkv2 sq7 d8 grad " + words);
  EXPECT_TRUE(c) << words << c.status().message();
  return conformance::make_problem(c.value(), {conformance::Guard::kCanaries, dense});
}

Policy only_of(const Forced& forced) {
  Policy policy;
  policy.only = std::vector<BackendRef>{forced.backend};
  return policy;
}

/// NaN at every position without a row: none may reach a result.
void poison(const Mask& mask, const TensorView& view) {
  if (!view.present()) return;
  conformance::for_each_element(view, [&](const auto& at, unsigned char* element) {
    const std::int64_t position = at[0] * kSeqlen + at[2];
    if (mask[static_cast<std::size_t>(position)] == 0) oracle::encode(kNan, element, view.dtype);
  });
}

void poison_inputs(const Mask& mask, const AttentionGradRequest& r) {
  for (const TensorView* view : {&r.q, &r.k, &r.v, &r.d_out, &r.d_lse}) poison(mask, *view);
}

/// Every byte of every position without a row is 0.
void expect_zeros(const Mask& mask, const std::vector<TensorView>& views) {
  for (const TensorView& view : views) {
    int count = 0;
    conformance::for_each_element(view, [&](const auto& at, const unsigned char* element) {
      if (mask[static_cast<std::size_t>(at[0] * kSeqlen + at[2])] != 0) return;
      for (int i = 0; i < size_of(view.dtype); ++i) count += element[i] != 0 ? 1 : 0;
    });
    EXPECT_EQ(count, 0);
  }
}

void expect_zero_gradients(const Mask& mask, const AttentionGradRequest& r) {
  expect_zeros(mask, {r.d_q, r.d_k, r.d_v});
}

struct Way {
  bool by_plan = true;             // the backward is by the forward's plan
  const Mask* poisoned = nullptr;  // what the forward wrote at positions without a row becomes NaN
};

/// Forward and backward of padded tensors.
void run_padded(Context& context, Problem* problem, const PaddedSequences& sequences,
                const Policy& policy = {}, const Way& way = {}) {
  problem->reset_outputs();
  PlannedCall planned;
  Launch launch;
  launch.planned = &planned;
  AttentionGradRequest request = problem->request();
  Status status = attention_padded(context, request, sequences, policy, launch);
  ASSERT_EQ(status.to_string(), "ok");
  if (way.poisoned != nullptr) {
    expect_zeros(*way.poisoned, {request.out});
    poison(*way.poisoned, request.out);
    poison(*way.poisoned, request.saved.stats);
  }
  problem->begin_backward();
  if (way.by_plan) request.saved.plan = planned.plan;
  status = attention_padded_backward(context, request, sequences, policy);
  ASSERT_EQ(status.to_string(), "ok");
  ASSERT_EQ(problem->check_memory(), "");
}

/// The same by attention() and attention_backward() with seqlens.
void run_with_seqlens(Context& context, Problem* problem, const Mask& mask, const Policy& policy) {
  std::vector<std::int32_t> seqlens(kBatch, 0);
  for (std::size_t i = 0; i < mask.size(); ++i) seqlens[i / kSeqlen] += mask[i];
  problem->reset_outputs();
  AttentionGradRequest request = problem->request();
  request.seqlens_q = request.seqlens_kv = make_view(seqlens.data(), {kBatch});
  ASSERT_EQ(attention(context, request, policy).to_string(), "ok");
  problem->begin_backward();
  ASSERT_EQ(attention_backward(context, request, policy).to_string(), "ok");
}

/// The rows of entry b, in tensors of their own.
class Single {
 public:
  Single(const AttentionGradRequest& from, const Mask& mask, std::int64_t b) : b_(b) {
    for (std::int64_t s = 0; s < kSeqlen; ++s) {
      if (mask[static_cast<std::size_t>(b * kSeqlen + s)] != 0) positions_.push_back(s);
    }
    request = from;
    for (TensorView* view : {&request.q, &request.k, &request.v, &request.out, &request.lse,
                             &request.saved_stats, &request.d_out, &request.d_lse, &request.delta,
                             &request.d_q, &request.d_k, &request.d_v}) {
      if (view->present()) *view = rows(*view);
    }
    request.saved.stats = request.saved_stats.present() ? request.saved_stats : request.lse;
    request.d_sinks = {};
  }
  bool empty() const { return positions_.empty(); }
  TensorView rows(const TensorView& from) {
    const auto count = static_cast<std::int64_t>(positions_.size());
    const TensorView made =
        from.rank == 3 ? tensors_.make(from.dtype, {1, from.shape[1], count})
                       : tensors_.make(from.dtype, {1, from.shape[1], count, from.shape[3]});
    conformance::for_each_element(made, [&](const auto& at, unsigned char* element) {
      const std::int64_t s = positions_[static_cast<std::size_t>(at[2])];
      const std::int64_t last = from.rank == 4 ? at[3] * from.strides[3] : 0;
      const std::int64_t offset =
          b_ * from.strides[0] + at[1] * from.strides[1] + s * from.strides[2] + last;
      const auto size = static_cast<std::size_t>(size_of(from.dtype));
      std::memcpy(element, static_cast<const char*>(from.data) + offset * size_of(from.dtype),
                  size);
    });
    return made;
  }

  AttentionGradRequest request;

 private:
  std::int64_t b_;
  std::vector<std::int64_t> positions_;
  Tensors tensors_;
};

/// Each sequence has the gradients that it has alone: the same bits where `tolerance` is 0.
void expect_singles(Context& context, const AttentionGradRequest& whole, const Mask& mask,
                    const Policy& policy, double tolerance) {
  for (std::int64_t b = 0; b < kBatch; ++b) {
    Single single(whole, mask, b);
    if (single.empty()) continue;
    const AttentionGradRequest& alone = single.request;
    const TensorView computed[] = {single.rows(whole.out), single.rows(whole.d_q),
                                   single.rows(whole.d_k), single.rows(whole.d_v)};
    ASSERT_EQ(attention(context, alone, policy).to_string(), "ok");
    ASSERT_EQ(attention_backward(context, alone, policy).to_string(), "ok");
    const TensorView expected[] = {alone.out, alone.d_q, alone.d_k, alone.d_v};
    for (int n = 0; n < 4; ++n) {
      if (tolerance == 0) {
        EXPECT_EQ(unequal(computed[n], expected[n]), "") << "entry " << b << " tensor " << n;
      } else {
        EXPECT_LE(largest_difference(computed[n], expected[n]), tolerance)
            << "entry " << b << " tensor " << n;
      }
    }
  }
}

class PaddedBackward : public testing::TestWithParam<Forced> {
 protected:
  std::unique_ptr<Context> context_ = make_context(GetParam().isa);
  Policy policy_ = only_of(GetParam());
};

INSTANTIATE_TEST_SUITE_P(All, PaddedBackward, testing::ValuesIn(forced_backends()),
                         [](const auto& param) { return name_of(param.param); });

constexpr const char* kWords[] = {"f32 saved lse",
                                  "f32 lse",
                                  "bf16 saved",
                                  "f16 lse",
                                  "f32 saved causal diag=tl",
                                  "f32 lse causal diag=br",
                                  "f32 saved window=2,0 diag=tl",
                                  "f32 saved softcap=2 sinks d_lse lse",
                                  "f32 saved delta"};

TEST_P(PaddedBackward, WithLengthsHasTheBitsOfSeqlens) {
  for (const std::string words :
       {"f32 saved lse", "f32 lse", "bf16 saved", "f32 saved causal diag=br",
        "f32 saved sinks bias=B,H,Sq,Skv", "f32 saved bias=1,1,1,Skv d_lse lse", "f32 saved delta",
        "f32 lse dropout=0.5"}) {
    SCOPED_TRACE(words);
    Problem problem = problem_of(words);
    const Lengths lengths = lengths_of(kRight);
    poison_inputs(kRight, problem.request());
    run_with_seqlens(*context_, &problem, kRight, policy_);
    const std::vector<unsigned char> expected = problem.output_bytes();
    for (const bool by_plan : {false, true}) {
      run_padded(*context_, &problem, {lengths, lengths, PaddingPolicy::kPadded}, policy_,
                 {by_plan});
      EXPECT_EQ(problem.output_bytes(), expected);
    }
    expect_zero_gradients(kRight, problem.request());
  }
}

TEST_P(PaddedBackward, EveryPathHasTheGradientsOfSingleSequences) {
  for (const Mask* mask : {&kRight, &kLeft, &kHoles}) {
    const Lengths lengths = lengths_of(*mask);
    for (const std::string words : kWords) {
      Problem problem = problem_of(words);
      poison_inputs(*mask, problem.request());
      const bool measures = problem.source().params.window_right >= 0;
      for (const PaddingPolicy padding :
           {PaddingPolicy::kAuto, PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
        const bool is_masked = mask != &kRight && padding != PaddingPolicy::kPacked;
        if (is_masked && measures && mask == &kHoles) continue;  // no path
        SCOPED_TRACE(words + " " + to_string(padding));
        const double wide = problem.request().q.dtype == Dtype::kF32 ? 2e-5 : 0.05;
        for (const bool by_plan : {false, true}) {
          run_padded(*context_, &problem, {lengths, lengths, padding}, policy_, {by_plan, mask});
          expect_singles(*context_, problem.request(), *mask, policy_, is_masked ? wide : 0.0);
          expect_zero_gradients(*mask, problem.request());
        }
      }
    }
  }
}

// What belongs to no position: the sums over padded and packed rows are the same numbers.
TEST_P(PaddedBackward, GradientsOfBiasAndSinksAreThoseOfSeqlens) {
  for (const std::string words :
       {"f32 saved sinks", "f32 saved bias=B,H,Sq,Skv", "f32 saved bias=1,1,1,Skv",
        "f32 saved bias=1,H,Sq,1", "f32 saved bias=B,1,1,1", "f32 lse bias sinks"}) {
    SCOPED_TRACE(words);
    Problem problem = problem_of(words);
    // Of at most 5 rows: what lies beyond the longest sequence has no gradient.
    Mask mask = kRight;
    std::fill(mask.begin() + 2 * kSeqlen + 5, mask.begin() + 3 * kSeqlen, std::uint8_t{0});
    const Lengths lengths = lengths_of(mask);
    Tensors tensors;
    run_with_seqlens(*context_, &problem, mask, policy_);
    AttentionGradRequest expected = problem.request();
    for (TensorView* view : {&expected.d_bias, &expected.d_sinks}) {
      if (!view->present()) continue;
      *view = view->rank == 4 ? tensors.copy(*view) : *view;
    }
    std::vector<float> sinks;
    if (expected.d_sinks.present()) {
      const auto* data = static_cast<const float*>(expected.d_sinks.data);
      sinks.assign(data, data + expected.d_sinks.shape[0]);
      expected.d_sinks = make_view(sinks.data(), {4});
    }
    run_padded(*context_, &problem, {lengths, lengths, PaddingPolicy::kPacked}, policy_);
    const AttentionGradRequest& r = problem.request();
    if (r.d_bias.present()) {
      EXPECT_LE(largest_difference(r.d_bias, expected.d_bias), 1e-5);
    }
    if (r.d_sinks.present()) {
      EXPECT_LE(largest_difference(r.d_sinks, expected.d_sinks), 1e-5);
    }
  }
}

// Strides, gradients that are left out, and canaries round every tensor and the workspace.
TEST_P(PaddedBackward, WritesNothingBesideItsOutputs) {
  for (const Mask* mask : {&kRight, &kLeft}) {
    const Lengths lengths = lengths_of(*mask);
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      for (const PaddingPolicy padding : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
        const std::string words = "f32 saved lse d_lse layout=strided sinks bias=B,1,1,1 seed=";
        Problem problem = problem_of(words + std::to_string(seed), /*dense=*/false);
        SCOPED_TRACE(seed);
        const PaddedSequences sequences{lengths, lengths, padding};
        problem.reset_outputs();
        PlannedCall planned;
        Launch forward;
        forward.planned = &planned;
        AttentionGradRequest request = problem.request();
        ASSERT_EQ(attention_padded(*context_, request, sequences, policy_, forward).to_string(),
                  "ok");
        problem.begin_backward();
        request.saved.plan = planned.plan;
        conformance::Block block(static_cast<std::size_t>(planned.plan.backward_workspace_bytes()),
                                 6, conformance::Guard::kCanaries);
        Launch launch;
        launch.workspace = {block.data(), block.size()};
        const Status status =
            attention_padded_backward(*context_, request, sequences, policy_, launch);
        ASSERT_EQ(status.to_string(), "ok");
        EXPECT_EQ(problem.check_memory(), "");
        EXPECT_TRUE(block.intact());
      }
    }
  }
}

TEST(AttentionPaddedBackward, ThePlansPathHolds) {
  Context context;
  Problem problem = problem_of("f32 saved");
  const Lengths lengths = lengths_of(kRight);
  run_padded(context, &problem, {lengths, lengths, PaddingPolicy::kPacked}, {}, {false});
  const AttentionGradRequest& padded = problem.request();
  for (const PaddingPolicy forward : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
    PlannedCall planned, back;
    Launch launch;
    launch.planned = &planned;
    AttentionGradRequest request = padded;
    ASSERT_TRUE(attention_padded(context, request, {lengths, lengths, forward}, {}, launch).ok());
    request.saved.plan = planned.plan;
    launch.planned = &back;
    // The policy says the other path.
    const PaddingPolicy other =
        forward == PaddingPolicy::kPacked ? PaddingPolicy::kPadded : PaddingPolicy::kPacked;
    ASSERT_TRUE(
        attention_padded_backward(context, request, {lengths, lengths, other}, {}, launch).ok());
    EXPECT_EQ(back.params->features.has(Feature::kPacked), forward == PaddingPolicy::kPacked);
  }
}

TEST(AttentionPaddedBackward, EveryPathTakesTheStatisticsOfAnyOther) {
  Context context;
  for (const std::string words : {"f32 saved", "f32 lse"}) {
    for (const Mask* mask : {&kRight, &kLeft}) {
      Problem problem = problem_of(words);
      const Lengths lengths = lengths_of(*mask);
      for (const PaddingPolicy forward : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
        const PaddingPolicy backward =
            forward == PaddingPolicy::kPacked ? PaddingPolicy::kPadded : PaddingPolicy::kPacked;
        problem.reset_outputs();
        const AttentionGradRequest& request = problem.request();
        ASSERT_TRUE(attention_padded(context, request, {lengths, lengths, forward}).ok());
        problem.begin_backward();
        const Status status =
            attention_padded_backward(context, request, {lengths, lengths, backward});
        ASSERT_EQ(status.to_string(), "ok");
        expect_singles(context, request, *mask, {}, 2e-5);
      }
    }
  }
}

TEST(AttentionPaddedBackward, AWorkspaceOverAPaddedTensorIsRefused) {
  Context context;
  const Problem problem = problem_of("f32 saved");
  const Lengths lengths = lengths_of(kLeft);
  conformance::Block block(std::size_t{1} << 20, 6, conformance::Guard::kCanaries);
  Launch launch;
  launch.workspace = {block.data(), block.size()};
  for (const PaddingPolicy padding : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
    const PaddedSequences sequences{lengths, lengths, padding};
    AttentionGradRequest forward = problem.request(), backward = problem.request();
    forward.out.data = backward.d_k.data = block.data();
    for (const Status& status :
         {attention_padded(context, forward, sequences, {}, launch),
          attention_padded_backward(context, backward, sequences, {}, launch)}) {
      EXPECT_EQ(status.code(), StatusCode::kWorkspace);
      EXPECT_NE(status.message().find("must not overlap"), std::string::npos) << status.message();
    }
  }
  for (std::size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block.data()[i], 0xff) << i;
}

TEST(AttentionPaddedBackward, CrossLengthsAndPositionIds) {
  Context context;
  Problem problem = problem_of("f32 saved");
  const Lengths q = lengths_of(kRight), kv = lengths_of(kLeft);
  run_padded(context, &problem, {q, kv, PaddingPolicy::kPacked});
  const std::vector<unsigned char> packed = problem.output_bytes();
  run_padded(context, &problem, {q, kv, PaddingPolicy::kPadded});
  const std::vector<unsigned char> masked = problem.output_bytes();
  ASSERT_EQ(packed.size(), masked.size());
  for (std::size_t i = 0; i < packed.size(); i += sizeof(float)) {
    float a = 0, b = 0;
    std::memcpy(&a, &packed[i], sizeof(a));
    std::memcpy(&b, &masked[i], sizeof(b));
    if (a != b) {
      EXPECT_NEAR(a, b, 1e-5) << i;
    }
  }
  // Two sequences in one row of the batch.
  std::vector<std::int32_t> ids;
  for (std::int32_t b = 0; b < kBatch; ++b) {
    for (std::int32_t s = 0; s < kSeqlen; ++s) ids.push_back(s < 3 ? s : s - 3);
  }
  const Lengths several =
      Lengths::from_position_ids(make_view(ids.data(), {kBatch, kSeqlen})).value();
  ASSERT_EQ(several.num_sequences(), 2 * kBatch);
  run_padded(context, &problem, {several, several});
  Mask first(kBatch * kSeqlen, 0);
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = i % kSeqlen < 3 ? 1 : 0;
  expect_singles(context, problem.request(), first, {}, 0.0);
}

TEST(AttentionPaddedBackward, WithoutAnyRowIsZeros) {
  Context context;
  const Lengths none = lengths_of(Mask(kBatch * kSeqlen, 0));
  for (const std::string words : {"f32 saved", "f32 saved sinks bias", "f32 lse"}) {
    Problem problem = problem_of(words);
    for (const PaddingPolicy padding :
         {PaddingPolicy::kAuto, PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
      SCOPED_TRACE(words + " " + to_string(padding));
      run_padded(context, &problem, {none, none, padding});
      const AttentionGradRequest& r = problem.request();
      expect_zero_gradients(Mask(kBatch * kSeqlen, 0), r);
      for (const TensorView* view : {&r.d_bias, &r.d_sinks}) {
        if (!view->present()) continue;
        conformance::for_each_element(*view, [&](const auto&, const unsigned char* element) {
          EXPECT_EQ(oracle::decode(element, view->dtype), 0.0);
        });
      }
    }
  }
}

/// The message of what is refused, with nothing written.
std::string backward_refusal(Problem* problem, const PaddedSequences& sequences,
                             const AttentionGradRequest& request) {
  Context context;
  const std::vector<unsigned char> before = problem->output_bytes();
  const Status status = attention_padded_backward(context, request, sequences);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_EQ(problem->output_bytes(), before) << status.message();
  return status.message();
}

TEST(AttentionPaddedBackward, RefusalsWriteNothing) {
  Context context;
  const Lengths right = lengths_of(kRight), left = lengths_of(kLeft), holes = lengths_of(kHoles);
  Problem problem = problem_of("f32 saved sinks bias=1,1,1,Skv");
  run_padded(context, &problem, {right, right, PaddingPolicy::kPacked});
  const auto refused = [&](const char* fragment, const PaddedSequences& sequences, auto change) {
    AttentionGradRequest request = problem.request();
    change(request);
    const std::string message = backward_refusal(&problem, sequences, request);
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
  };
  const auto unchanged = [](AttentionGradRequest&) {};
  for (const PaddingPolicy padding : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
    const PaddedSequences s{right, right, padding};
    refused("d_q f32[4,4,7,8]", s, [](auto& r) { r.d_q = r.d_out; });  // they overlap
    refused("d_out", s, [](auto& r) { r.d_out = {}; });
    refused("saved.kind", s, [](auto& r) { r.saved.kind = SavedContext::Kind::kNone; });
    refused("saved.stats", s, [](auto& r) { r.saved.kind = SavedContext::Kind::kLse; });
    refused("d_v", s, [](auto& r) { r.d_v.read_only = true; });
    refused("d_k", s, [](auto& r) { r.d_k.shape[2] = 6; });
    refused("seqlens_q (given)", s, [](auto& r) {
      static const std::int32_t seqlens[] = {1, 1, 1, 1};
      r.seqlens_q = make_view(seqlens, {4});
    });
    refused("rng_seed", s, [](auto& r) {
      r.options.dropout_p = 0.5;
      r.rng_seed = r.saved.rng_seed + 1;
    });
  }
  refused("lengths of q", {Lengths(), right}, unchanged);
  refused("lengths of k", {right, Lengths()}, unchanged);
  refused("attn_bias of 1 position", {left, left, PaddingPolicy::kPacked}, unchanged);
  // Plans of other forwards.
  const auto planned = [&](const std::string& words) {
    return plan(context, parse_case("b4 hq4 hkv2 sq7 d8 grad f32 " + words)->params).value();
  };
  refused("no lengths, mask or packed rows", {right, right},
          [&](auto& r) { r.saved.plan = planned("saved sinks bias=1,1,1,Skv"); });
  refused("rows of each sequence to come first", {holes, holes},
          [&](auto& r) { r.saved.plan = planned("saved lens sinks bias=1,1,1,Skv"); });
}

}  // namespace
}  // namespace regard::test

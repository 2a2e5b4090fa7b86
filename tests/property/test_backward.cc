#include <gtest/gtest.h>

#include <algorithm>

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/compare_gradients.h"
#include "conformance/memory.h"
#include "oracle/gradients.h"
#include "property.h"

// What decides no bit of a gradient, and problems around the edges of the backward's blocks.

namespace regard {
namespace {

using conformance::Block;
using conformance::Guard;
using conformance::Problem;
using test::slice;
using test::unequal;

class Backward : public test::Property {
 protected:
  /// Runs the problem's forward and backward by a plan, in exactly the workspaces that are stated.
  static void run_pair(const Plan& made, Problem* problem) {
    const AttentionGradRequest& request = problem->request();
    problem->reset_outputs();
    {
      const Block workspace = workspace_of(made.workspace_bytes());
      check(execute(made, request, {nullptr, nullptr, {workspace.data(), workspace.size()}}));
      ASSERT_TRUE(workspace.intact());
    }
    problem->begin_backward();
    const Block workspace = workspace_of(made.backward_workspace_bytes());
    const Launch launch{nullptr, nullptr, {workspace.data(), workspace.size()}};
    check(execute_backward(made, request, request, launch));
    ASSERT_TRUE(workspace.intact());
    ASSERT_EQ(problem->check_memory(), "");
  }

  /// On so many slots.
  static void run_pair(Problem* problem, int slots) {
    const auto context = test::make_context(GetParam().isa, slots);
    const Plan made = test::plan_forced(*context, problem->request(), GetParam());
    const Isa isa = made.backward_kernel().isa;
    ASSERT_EQ(isa, std::min(GetParam().isa, Isa::kAvx512)) << made.to_string();
    run_pair(made, problem);
  }

 private:
  static Block workspace_of(std::int64_t bytes) {
    Block workspace(static_cast<std::size_t>(bytes), 6, Guard::kCanaries);
    workspace.fill(0xff);
    return workspace;
  }
};

/// Problems of several blocks, of rows alone, of keys alone, and of both.
constexpr const char* kBlocks[] = {
    "b1 hq1 sq1000 d16 f32 causal saved grad",
    "b1 hq4 hkv2 sq500 skv900 d8 f32 causal diag=br saved grad",
    "b3 hq1 sq900 skv500 d8 bf16 window=100,50 diag=br lens saved grad",
    "b1 hq3 sq385 skv385 d40 dv24 f16 dropout=0.25 saved grad",
    "b1 hq2 sq200 d16 bf16 window=15,15 saved grad",  // rows of few keys, over two tiles
    "b1 hq1 sq800 skv1 d8 f32 saved grad",
    "b1 hq1 sq1 skv800 d72 f32 saved grad",
    "b2 hq6 hkv1 sq130 skv769 d8 f32 mask segments softcap=5 sinks saved grad poison",
    "b1 hq2 sq390 skv400 d8 f32 bias alibi causal diag=br lse grad poison",
};

// The slots take whole heads while there are enough, and the blocks of the others.
TEST_P(Backward, SlotsDecideNoBit) {
  for (const char* text : kBlocks) {
    Problem problem = problem_of(text);
    run_pair(&problem, 1);
    const std::vector<unsigned char> one = problem.output_bytes();
    for (const int slots : {2, 3, 7, 16}) {
      run_pair(&problem, slots);
      EXPECT_TRUE(one == problem.output_bytes()) << text << " on " << slots << " slots";
    }
  }
}

TEST_P(Backward, BlocksAgreeWithTheOracle) {
  for (const char* text : kBlocks) {
    Problem problem = problem_of(text);
    run_pair(&problem, 2);
    const auto truth = oracle::compute_gradients(problem.request());
    ASSERT_TRUE(truth.ok()) << text;
    const auto comparison = conformance::compare_gradients(problem.request(), truth.value());
    EXPECT_TRUE(comparison.ok) << text << ": " << comparison.text;
  }
}

TEST_P(Backward, ASequenceAloneHasTheSameBits) {
  Problem batch = problem_of("b5 hq4 hkv2 sq400 skv450 d16 f32 causal diag=br saved grad");
  run_pair(&batch, 2);
  const AttentionGradRequest& whole = batch.request();
  for (std::int64_t b = 0; b < 5; ++b) {
    AttentionGradRequest alone = whole;
    for (TensorView* view : {&alone.q, &alone.k, &alone.v, &alone.out, &alone.saved_stats,
                             &alone.lse, &alone.saved.stats, &alone.d_out, &alone.delta,
                             &alone.d_lse, &alone.d_q, &alone.d_k, &alone.d_v}) {
      if (view->present()) *view = slice(*view, 0, b, 1);
    }
    for (TensorView* view : {&alone.d_q, &alone.d_k, &alone.d_v}) {
      if (view->present()) *view = tensors_.copy(*view);
    }
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
    check(attention_backward(*context_, alone));
    EXPECT_EQ(unequal(slice(whole.d_q, 0, b, 1), alone.d_q), "") << b;
    EXPECT_EQ(unequal(slice(whole.d_k, 0, b, 1), alone.d_k), "") << b;
    EXPECT_EQ(unequal(slice(whole.d_v, 0, b, 1), alone.d_v), "") << b;
  }
}

// A plan serves every smaller call in its workspaces, with the bits of the call's own plan.
TEST_P(Backward, APlanForMoreGivesTheSameBits) {
  const char* const words = " d16 f32 causal diag=br lens saved grad";
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  const AttentionParams large =
      parse_case(std::string("b5 hq4 hkv2 sq500 skv900") + words).value().params;
  for (const int slots : {2, 16}) {
    const auto context = test::make_context(GetParam().isa, slots);
    const Plan plan_for_more = plan(*context, large, policy).value();
    for (const char* text : {"b1 hq4 hkv2 sq1 skv1", "b5 hq4 hkv2 sq1 skv900",
                             "b1 hq4 hkv2 sq500 skv900", "b3 hq4 hkv2 sq65 skv63"}) {
      Problem problem = problem_of(std::string(text) + words);
      run_pair(&problem, 2);
      const std::vector<unsigned char> own = problem.output_bytes();
      run_pair(plan_for_more, &problem);
      EXPECT_TRUE(own == problem.output_bytes()) << text << " on " << slots << " slots";
    }
  }
}

// FLASH keeps packed rows and sums of as many heads as there are slots, EFFICIENT and MATH those of
// a tile.
TEST_P(Backward, MemoryIsLinearInTheLengthAtMost) {
  std::vector<std::int64_t> bytes;
  for (const char* text : {"b1 hq2 sq4096 d64 f32 saved grad", "b1 hq2 sq8192 d64 f32 saved grad",
                           "b1 hq2 sq16384 d64 f32 saved grad"}) {
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    bytes.push_back(plan(*context_, parse_case(text).value().params, policy)
                        .value()
                        .backward_workspace_bytes());
  }
  const std::int64_t score_matrix = std::int64_t{16384} * 16384 * 4;
  EXPECT_LE(bytes[2], 2 * bytes[1]);
  EXPECT_LE(bytes[1], 2 * bytes[0]);
  EXPECT_LE(bytes[2], score_matrix / 16);
  if (GetParam().backend.id == BackendId::kEfficient) {
    EXPECT_EQ(bytes[2], bytes[0]);
  }
  if (GetParam().isa == Isa::kScalar) return;  // half a minute
  Problem problem = problem_of("b1 hq1 sq16384 d8 f32 causal saved grad");
  run_pair(&problem, 2);
}

REGARD_INSTANTIATE_PROPERTIES(Backward);

}  // namespace
}  // namespace regard

#include "tests/property/property.h"
#include "tests/support/scratch.h"

// What a row's bits may not depend on: other sequences, padding, strides, the order of heads, the
// extents that a plan was made for.

namespace regard {
namespace {

using conformance::Problem;
using test::slice;
using test::unequal;

class Invariance : public test::Property {};

const char* const kBatches[] = {
    "b6 hq2 sq65 skv127 d32 f32 lens lse seed=1",
    "b6 hq4 hkv2 sq65 skv65 d16 f32 lens causal diag=br lse poison seed=2",
    "b7 hq2 sq127 skv63 d33 bf16 lens causal diag=tl window=20,0 alibi lse seed=3",
    "b5 hq2 sq33 skv300 d64 f16 lens mask bias segments softcap=5 sinks lse poison seed=4",
    "b5 hq6 hkv3 sq17 skv129 d8 dv24 f32 lens causal diag=seq mask=B,1,Sq,Skv lse seed=5",
    "b6 hq2 sq65 skv65 d16 f32 bias=1,H,1,Skv causal lse seed=6",
    // few rows, whose keys come in parts; in the last two beside sequences of many
    "b7 hq8 hkv2 sq1 skv1600 d64 bf16 lens causal diag=br lse poison seed=7",
    "b6 hq4 hkv1 sq3 skv1100 d40 f32 lens causal diag=br window=700,0 alibi sinks lse seed=8",
    "b5 hq6 hkv1 sq9 skv1100 d20 dv36 f16 lens mask bias softcap=5 lse poison seed=9",
    "b6 hq4 hkv2 sq40 skv1300 d33 dv17 f16 lens causal diag=br lse poison seed=10",
    "b6 hq3 hkv1 sq70 skv700 d16 bf16 lens segments sinks lse seed=11",
    // narrow windows, whose keys are one tile
    "b5 hq4 hkv2 sq220 skv300 d40 bf16 lens causal diag=br window=127,0 sinks lse poison seed=12",
    "b5 hq3 hkv1 sq140 skv260 d32 f32 lens window=100,28 diag=br lse seed=13",
};

// Lengths, a padded batch and a loop over sequences are one thing.
TEST_P(Invariance, ABatchIsItsSequences) {
  for (const char* text : kBatches) {
    const Problem problem = problem_of(text);
    const AttentionRequest& whole = problem.request();
    run(whole);
    for (std::int64_t b = 0; b < whole.q.shape[0]; ++b) {
      const AttentionRequest cut = test::single_sequence(whole, b);
      const AttentionRequest alone = run_anew(cut);
      EXPECT_EQ(unequal(cut.out, alone.out), "") << text << " b " << b;
      EXPECT_EQ(unequal(cut.lse, alone.lse), "") << text << " b " << b;
    }
  }
}

// A tuning table may choose a variant whatever a policy requires of bits.
TEST_P(Invariance, EveryVariantHasTheBitsOfTheDefault) {
  std::vector<std::string> cases(std::begin(kBatches), std::end(kBatches));
  cases.insert(cases.end(), {"b1 hq2 hkv1 sq300 skv700 d64 f32 causal diag=br lse layout=bshd",
                             "b1 hq2 sq500 skv700 d40 bf16 window=9,9 diag=br lse",
                             "b1 hq1 sq450 skv450 d32 f32 mask bias lse poison seed=14",
                             "b1 hq2 sq80 skv8300 d16 f32 lse seed=15",
                             "b1 hq1 sq40 skv900 d24 f32 lse layout=bshd",
                             "b2 hq16 hkv8 sq1 skv2100 d64 bf16 lse layout=bshd",
                             "b1 hq4 hkv4 sq2 skv1700 d64 f32 layout=bshd lse dropout=0.3"});
  int variants = 0;
  for (const std::string& text : cases) {
    Problem problem = problem_of(text);
    const AttentionRequest& request = problem.request();
    run(request);
    const std::vector<unsigned char> expected = problem.output_bytes();
    const Plan plan = test::plan_forced(*context_, request, GetParam());
    for (const std::string& name : plan.variants()) {
      const Expected<Plan> variant = plan.with_variant(name);
      ASSERT_TRUE(variant.ok()) << text << ": " << variant.status().message();
      EXPECT_EQ(variant->kernel().variant, name);
      EXPECT_LE(variant->workspace_bytes(), plan.workspace_bytes()) << text << " " << name;
      test::Scratch scratch(variant->workspace_bytes());
      problem.reset_outputs();
      ASSERT_TRUE(execute(*variant, request, scratch.launch).ok()) << text << " " << name;
      EXPECT_TRUE(scratch.intact()) << text << " " << name;
      EXPECT_EQ(problem.output_bytes(), expected) << text << " " << name;
      ++variants;
    }
  }
  const bool has_variants = GetParam().backend != test::kMathRef;
  EXPECT_EQ(variants > 0, has_variants);
}

TEST_P(Invariance, ABatchBackwardsIsTheBatchBackwards) {
  const Problem problem = problem_of("b5 hq2 sq65 skv127 d32 f32 causal diag=br mask lse seed=8");
  const AttentionRequest& whole = problem.request();
  run(whole);
  AttentionRequest backwards = whole;
  for (TensorView* view : {&backwards.q, &backwards.k, &backwards.v, &backwards.attn_mask}) {
    *view = slice(*view, 0, 4, 5);
    view->strides[0] = -view->strides[0];
    *view = tensors_.copy(*view);  // the core takes no negative strides
  }
  backwards = run_anew(backwards);
  for (std::int64_t b = 0; b < 5; ++b) {
    EXPECT_EQ(unequal(slice(whole.out, 0, b, 1), slice(backwards.out, 0, 4 - b, 1)), "") << b;
    EXPECT_EQ(unequal(slice(whole.lse, 0, b, 1), slice(backwards.lse, 0, 4 - b, 1)), "") << b;
  }
}

TEST_P(Invariance, StridesDecideNoBit) {
  for (const char* text : {"b2 hq4 hkv2 sq65 skv127 d33 f32 causal diag=br mask bias lse poison",
                           "b2 hq4 hkv4 sq65 skv65 d32 dv16 bf16 window=9,9 lse",
                           "b3 hq2 sq33 skv65 d64 f16 segments sinks lse poison",
                           "b2 hq8 hkv4 sq1 skv1100 d64 bf16 causal diag=br lse poison",
                           "b1 hq30 hkv10 sq2 skv600 d24 f16 bias lse"}) {
    const Problem problem = problem_of(text);
    const AttentionRequest& dense = problem.request();
    run(dense);
    const std::initializer_list<int> orders[] = {
        {0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}, {2, 1, 0, 3}};
    for (const auto order : orders) {
      for (const std::int64_t padding : {0, 5}) {
        AttentionRequest other = dense;
        for (TensorView* view : {&other.q, &other.k, &other.v, &other.out}) {
          *view = tensors_.copy(*view, order, padding);
        }
        // Masks may even be transposed.
        if (other.attn_mask.present())
          other.attn_mask = tensors_.copy(other.attn_mask, {3, 2, 0, 1});
        if (other.attn_bias.present())
          other.attn_bias = tensors_.copy(other.attn_bias, {1, 3, 2, 0}, 1);
        other.lse = tensors_.copy(other.lse, {2, 0, 1}, padding);
        run(other);
        EXPECT_EQ(unequal(dense.out, other.out), "") << text;
        EXPECT_EQ(unequal(dense.lse, other.lse), "") << text;
      }
    }
  }
}

TEST_P(Invariance, ExpandedIsMaterialised) {
  const Problem problem = problem_of("b3 hq4 hkv4 sq65 skv65 d32 f32 mask=B,H,Sq,Skv bias lse");
  AttentionRequest expanded = problem.request();
  for (TensorView* view : {&expanded.k, &expanded.v, &expanded.attn_mask}) view->strides[1] = 0;
  expanded.v.strides[0] = expanded.attn_bias.strides[0] = expanded.attn_bias.strides[2] = 0;
  run(expanded);
  AttentionRequest materialised = expanded;
  for (TensorView* view :
       {&materialised.k, &materialised.v, &materialised.attn_mask, &materialised.attn_bias}) {
    *view = tensors_.copy(*view);
  }
  materialised = run_anew(materialised);
  EXPECT_EQ(unequal(expanded.out, materialised.out), "");
  EXPECT_EQ(unequal(expanded.lse, materialised.lse), "");
}

TEST_P(Invariance, ABroadcastMaskIsItsCopies) {
  const Problem problem =
      problem_of("b3 hq2 sq65 skv65 d16 f32 mask=1,1,Sq,Skv bias=B,1,1,Skv lse");
  const AttentionRequest& narrow = problem.request();
  run(narrow);
  AttentionRequest wide = narrow;
  const auto widen = [](TensorView view) {
    const std::int64_t shape[] = {3, 2, 65, 65};
    for (int dim = 0; dim < 4; ++dim) {
      if (view.shape[dim] == 1) view.strides[dim] = 0;
      view.shape[dim] = shape[dim];
    }
    return view;
  };
  wide.attn_mask = tensors_.copy(widen(narrow.attn_mask));
  wide.attn_bias = tensors_.copy(widen(narrow.attn_bias));
  wide = run_anew(wide);
  EXPECT_EQ(unequal(narrow.out, wide.out), "");
  EXPECT_EQ(unequal(narrow.lse, wide.lse), "");
}

// A mask that spells a window out is the window: what tiles skip is what elements hide. A window of
// up to 256 keys is narrow.
TEST_P(Invariance, AMaskIsTheWindowItSpells) {
  struct Window {
    std::int64_t left, right;
    bool is_narrow;
  };
  constexpr std::int64_t kKeys = 400, kQueries = 65;
  const std::string sizes = "b2 hq4 hkv2 sq65 skv400 d40 dv24 diag=br mask=1,1,Sq,Skv lse window=";
  for (const Window& w : {Window{9, 2, true}, {200, 55, true}, {200, 56, false}}) {
    for (const char* dtype : {"f32", "bf16", "f16"}) {
      const std::string text =
          sizes + std::to_string(w.left) + "," + std::to_string(w.right) + " " + dtype;
      const Problem problem = problem_of(text);
      const AttentionRequest& both = problem.request();
      conformance::for_each_element(
          both.attn_mask, [&](const std::int64_t(&at)[4], unsigned char* element) {
            const std::int64_t distance = at[3] - (at[2] + kKeys - kQueries);
            *element = distance >= -w.left && distance <= w.right ? 1 : 0;
          });
      AttentionRequest window = both, mask = both;
      window.attn_mask = {};
      mask.options.window_left = mask.options.window_right = kUnlimited;
      mask.options.diagonal = Diagonal::kUnnamed;
      window = run_anew(window);
      mask = run_anew(mask);
      if (!w.is_narrow) {
        EXPECT_FALSE(sums_window_at_once(window)) << text;
      }
      EXPECT_FALSE(sums_window_at_once(mask)) << text;
      expect_same_call(window, mask, text);
    }
  }
}

// The same heads in another order give the same rows in that order.
TEST_P(Invariance, HeadsAreIndependent) {
  const Problem problem = problem_of("b2 hq6 hkv3 sq65 skv65 d32 bf16 causal lse seed=9");
  const AttentionRequest& whole = problem.request();
  run(whole);
  for (std::int64_t group = 0; group < 3; ++group) {
    AttentionRequest cut = whole;
    for (TensorView* view : {&cut.q, &cut.out, &cut.lse}) *view = slice(*view, 1, 2 * group, 2);
    for (TensorView* view : {&cut.k, &cut.v}) *view = slice(*view, 1, group, 1);
    const AttentionRequest alone = run_anew(cut);
    EXPECT_EQ(unequal(cut.out, alone.out), "") << group;
    EXPECT_EQ(unequal(cut.lse, alone.lse), "") << group;
  }
}

// A plan serves every smaller call, with the bits of the call's own plan.
TEST_P(Invariance, APlanForMoreGivesTheSameBits) {
  const AttentionParams large =
      parse_case("b9 hq2 sq300 skv700 d32 f32 causal diag=br lens lse").value().params;
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  const Plan plan_for_more = plan(*context_, large, policy).value();
  const test::Scratch scratch(plan_for_more.workspace_bytes());
  for (const char* text : {"b1 hq2 sq1 skv1 d32 f32 causal diag=br lens lse",
                           "b2 hq2 sq65 skv64 d32 f32 causal diag=br lens lse",
                           "b9 hq2 sq33 skv700 d32 f32 causal diag=br lens lse",
                           "b3 hq2 sq300 skv129 d32 f32 causal diag=br lens lse",
                           "b1 hq2 sq1 skv700 d32 f32 causal diag=br lens lse",
                           "b9 hq2 sq20 skv690 d32 f32 causal diag=br lens lse"}) {
    const Problem problem = problem_of(text);
    const AttentionRequest own = run_anew(problem.request());
    const Status status = execute(plan_for_more, problem.request(), scratch.launch);
    ASSERT_TRUE(status.ok()) << text << ": " << status.to_string();
    EXPECT_TRUE(scratch.intact()) << text;
    EXPECT_EQ(unequal(own.out, problem.request().out), "") << text;
    EXPECT_EQ(unequal(own.lse, problem.request().lse), "") << text;
  }
}

// Few rows of many sequences take several heads a task, for which workers that were planned for
// many rows may have no room.
TEST_P(Invariance, APlanForManyRowsHasRoomForFew) {
  const std::string sizes = " skv700 d32 f32 layout=bshd lse";
  for (const char* heads : {"hq8 hkv8", "hq16 hkv8", "hq8 hkv2"}) {
    const std::string many = "b16 " + std::string(heads) + " sq300" + sizes;
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const Plan planned = plan(*context_, parse_case(many).value().params, policy).value();
    const test::Scratch scratch(planned.workspace_bytes());
    for (const char* rows : {"b16 sq1", "b16 sq2", "b9 sq9", "b1 sq1", "b2 sq5"}) {
      const std::string text = std::string(rows) + " " + heads + sizes;
      const Problem problem = problem_of(text);
      const AttentionRequest own = run_anew(problem.request());
      const Status status = execute(planned, problem.request(), scratch.launch);
      ASSERT_TRUE(status.ok()) << text << ": " << status.to_string();
      ASSERT_TRUE(scratch.intact()) << text << " by " << planned.to_string();
      EXPECT_EQ(unequal(own.out, problem.request().out), "") << text;
      EXPECT_EQ(unequal(own.lse, problem.request().lse), "") << text;
    }
  }
}

// Rows whose keys lie in one tile have no room for outs, others none for copies of values that lie
// apart: a plan for more of either has room for both.
TEST_P(Invariance, APlanForMoreKeysHasRoomForOneTile) {
  struct Sizes {
    const char* sizes;
    std::vector<const char*> plans, calls;
  };
  const Sizes all[] = {
      {"b4 hq8 d64 f32 layout=bshd lse",
       {"sq48 skv256", "sq96 skv256", "sq700 skv700"},
       {"sq48 skv128", "sq20 skv48", "sq3 skv128"}},
      {"b4 hq8 d64 f32 layout=bshd lse", {"sq96 skv256", "sq700 skv700"}, {"sq96 skv96"}},
      {"b2 hq2 d64 dv512 f32 lse",
       {"sq17 skv48", "sq33 skv300"},
       {"sq16 skv48", "sq5 skv48", "sq1 skv17"}},
      {"b2 hq2 hkv1 d8 dv512 bf16 layout=bshd lse",
       {"sq17 skv48", "sq9 skv128"},
       {"sq8 skv48", "sq4 skv48", "sq1 skv17"}},
      // Fewer rows have splits.
      {"hq1 d64 f32 causal diag=br window=100,0 lse", {"sq128 skv1024"}, {"sq64 skv1024"}},
      {"hq24 hkv8 d64 f32 causal diag=br window=127,0 lse", {"sq704 skv9216"}, {"sq650 skv8300"}},
      // A tile of an odd number of keys.
      {"hq8 d256 bf16 window=129,1 lse", {"sq1024 skv1024"}, {"sq1024 skv1024"}},
      {"hq8 d256 bf16 window=128,1 lse", {"sq1024 skv1024"}, {"sq1024 skv1024"}},
  };
  Policy policy;
  policy.only = std::vector<BackendRef>{GetParam().backend};
  for (const auto& [sizes, plans, calls] : all) {
    for (const char* more : plans) {
      const std::string planned_text = std::string(sizes) + " " + more;
      const Plan planned = plan(*context_, parse_case(planned_text).value().params, policy).value();
      const test::Scratch scratch(planned.workspace_bytes());
      for (const char* less : calls) {
        const std::string text = std::string(sizes) + " " + less;
        const Problem problem = problem_of(text);
        const AttentionRequest own = run_anew(problem.request());
        const Status status = execute(planned, problem.request(), scratch.launch);
        ASSERT_TRUE(status.ok()) << text << ": " << status.to_string();
        ASSERT_TRUE(scratch.intact()) << text << " by " << planned.to_string();
        EXPECT_EQ(unequal(own.out, problem.request().out), "") << text;
      }
    }
  }
}

REGARD_INSTANTIATE_PROPERTIES(Invariance);

}  // namespace
}  // namespace regard

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "oracle/number.h"
#include "tests/property/property.h"

// What softmax itself says: parts merge to the whole, order of keys is nothing, scales commute.

namespace regard {
namespace {

using conformance::Problem;
using test::largest_difference;
using test::unequal;

class Algebra : public test::Property {};

void scale_values(const TensorView& view, double factor) {
  conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
    oracle::encode(oracle::decode(element, view.dtype) * factor, element, view.dtype);
  });
}

const char* const kSplits[] = {
    "b2 hq2 sq65 skv300 d32 f32 lse seed=1",
    "b2 hq4 hkv2 sq33 skv257 d64 f32 causal diag=200 mask sinks lse seed=2",
    "b1 hq3 sq65 skv129 d16 f32 bias segments alibi diag=3 lse poison seed=3",
    "b2 hq2 sq3 skv513 d8 f32 data=large lse seed=4",
};

// Keys in parts, merged: the whole, within the whole's tolerance.
TEST_P(Algebra, SplitsMergeToTheWhole) {
  for (const char* text : kSplits) {
    const Problem problem = problem_of(text);
    const AttentionRequest& whole = problem.request();
    const oracle::Truth truth = oracle::compute(whole).value();
    const std::int64_t keys = whole.k.shape[2];
    for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{0, keys / 2, keys},
                                                  {0, 1, keys - 1, keys},
                                                  {0, 64, 64, 128, keys}}) {  // one part is empty
      std::vector<StateView> parts;
      for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
        const AttentionRequest part = run_anew(test::some_keys(whole, cuts[n], cuts[n + 1]));
        parts.push_back({part.out, part.lse});
      }
      const Status status = merge_states(parts, whole.out, whole.lse);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_within_tolerance(whole, truth, text);
    }
  }
}

TEST_P(Algebra, KeyPermutationInvariance) {
  for (const char* text : {"b2 hq2 sq33 skv129 d32 f32 lse", "b2 hq2 sq33 skv129 d32 bf16 lse",
                           "b2 hq4 hkv2 sq65 skv65 d16 f16 mask bias lse poison",
                           "b1 hq2 sq5 skv257 d64 f32 data=outlier segments lse"}) {
    const Problem problem = problem_of(text);
    AttentionRequest turned = problem.request();
    const oracle::Truth truth = oracle::compute(turned).value();
    const auto turn = [&](TensorView* view, int dim) {
      if (!view->present() || view->shape[dim] == 1) return;
      *view = test::slice(*view, dim, view->shape[dim] - 1, view->shape[dim]);
      view->strides[dim] = -view->strides[dim];
      *view = tensors_.copy(*view);
    };
    turn(&turned.k, 2);
    turn(&turned.v, 2);
    turn(&turned.attn_mask, 3);
    turn(&turned.attn_bias, 3);
    if (turned.segment_ids_kv.present()) {
      TensorView ids = turned.segment_ids_kv;
      ids = test::slice(ids, 1, ids.shape[1] - 1, ids.shape[1]);
      ids.strides[1] = -ids.strides[1];
      turned.segment_ids_kv = tensors_.copy(ids, {0, 1});
    }
    expect_within_tolerance(run_anew(turned), truth, text);
  }
}

// Query heads of a group read one head: the same as with that head repeated for each.
TEST_P(Algebra, GroupsAreRepeatedHeads) {
  for (const char* text :
       {"b2 hq8 hkv2 sq33 skv65 d32 f32 causal diag=br lse", "b2 hq6 hkv1 sq65 skv65 d16 bf16 lse",
        "b1 hq4 hkv2 sq1 skv257 d64 f16 lse"}) {
    const Problem problem = problem_of(text);
    const AttentionRequest& grouped = problem.request();
    const oracle::Truth truth = oracle::compute(grouped).value();
    run(grouped);
    AttentionRequest repeated = grouped;
    const std::int64_t heads = grouped.q.shape[1], group = heads / grouped.k.shape[1];
    for (TensorView* view : {&repeated.k, &repeated.v}) {
      const std::int64_t* s = view->shape;
      const TensorView wide = tensors_.make(view->dtype, {s[0], heads, s[2], s[3]});
      for (std::int64_t h = 0; h < heads; ++h) {
        const TensorView from = test::slice(*view, 1, h / group, 1);
        conformance::for_each_element(
            from, [&](const std::int64_t(&at)[4], unsigned char* element) {
              const std::int64_t offset =
                  at[0] * wide.strides[0] + h * wide.strides[1] + at[2] * wide.strides[2] + at[3];
              std::memcpy(static_cast<char*>(wide.data) + offset * size_of(wide.dtype), element,
                          static_cast<std::size_t>(size_of(wide.dtype)));
            });
      }
      *view = wide;
    }
    repeated = run_anew(repeated);
    expect_within_tolerance(repeated, truth, text);
    expect_within_tolerance(grouped, truth, text);
    // Of each other they differ by less than of the truth: by the order of f32's sums, or a unit in
    // the last place.
    const double u = oracle::unit_roundoff(grouped.out.dtype);
    EXPECT_LE(largest_difference(repeated.out, grouped.out), std::max(2.0 * u, 2e-6)) << text;
    EXPECT_LE(largest_difference(repeated.lse, grouped.lse), 2e-6) << text;
  }
}

// Powers of two move through without rounding.
TEST_P(Algebra, PowersOfTwoCommute) {
  for (const char* text :
       {"b2 hq2 sq33 skv65 d32 f32 causal diag=br softcap=5 lse", "b2 hq2 sq33 skv65 d33 bf16 lse",
        "b2 hq2 sq33 skv65 d32 f16 out=f32 mask lse"}) {
    const Problem problem = problem_of(text);
    const AttentionRequest plain = run_anew(problem.request());
    AttentionRequest scaled = problem.request();
    scaled.options.softmax_scale = default_softmax_scale(scaled.q.shape[3]) / 4.0;
    scaled.q = tensors_.copy(scaled.q);
    scaled.v = tensors_.copy(scaled.v);
    scale_values(scaled.q, 4.0);
    scale_values(scaled.v, 2.0);
    scaled = run_anew(scaled);
    scale_values(scaled.out, 0.5);
    EXPECT_EQ(unequal(plain.out, scaled.out), "") << text;
    EXPECT_EQ(unequal(plain.lse, scaled.lse), "") << text;
  }
}

// A constant added to all of a row's scores moves its lse and nothing else.
TEST_P(Algebra, AConstantBiasMovesLseAlone) {
  const Problem problem = problem_of("b2 hq2 sq33 skv65 d32 f32 bias=B,1,Sq,1 lse seed=3");
  const AttentionRequest& biased = problem.request();
  conformance::for_each_element(biased.attn_bias, [&](const auto&, unsigned char* element) {
    oracle::encode(-3.25, element, biased.attn_bias.dtype);
  });
  run(biased);
  AttentionRequest plain = biased;
  plain.attn_bias = {};
  plain = run_anew(plain);
  EXPECT_LT(largest_difference(biased.out, plain.out), 2e-6);
  conformance::for_each_element(plain.lse, [&](const auto&, unsigned char* element) {
    oracle::encode(oracle::decode(element, Dtype::kF32) - 3.25, element, Dtype::kF32);
  });
  EXPECT_LT(largest_difference(biased.lse, plain.lse), 2e-6);
}

// One number for all values comes out again, whatever the weights: they sum to one.
TEST_P(Algebra, WeightsSumToOne) {
  const Problem problem =
      problem_of("b2 hq2 sq65 skv257 d32 dv3 f32 causal diag=br bias=1,H,1,Skv lse");
  const AttentionRequest& r = problem.request();
  conformance::for_each_element(
      r.v, [&](const auto&, unsigned char* element) { oracle::encode(1.0, element, Dtype::kF32); });
  run(r);
  conformance::for_each_element(r.out, [&](const std::int64_t(&at)[4], unsigned char* element) {
    const float* lse = static_cast<const float*>(r.lse.data) + at[0] * r.lse.strides[0] +
                       at[1] * r.lse.strides[1] + at[2] * r.lse.strides[2];
    const double expected = std::isinf(*lse) ? 0.0 : 1.0;
    ASSERT_NEAR(oracle::decode(element, Dtype::kF32), expected, 1e-6);
  });
}

// A prefill in chunks drops what it drops at once, and a later chunk needs only its place.
TEST_P(Algebra, ChunksOfAPrefillDropTheSame) {
  for (const char* text :
       {"b2 hq4 hkv2 sq65 skv65 d32 f32 causal diag=0 dropout=0.5 lse",
        "b2 hq2 sq63 skv127 d16 f32 window=40,3 diag=64 dropout=0.25 alibi lse"}) {
    const Problem problem = problem_of(text);
    const AttentionRequest& whole = problem.request();
    run(whole);
    for (const std::int64_t cut : {1, 17, 48}) {
      for (const bool first : {true, false}) {
        const AttentionRequest part = first ? test::some_queries(whole, 0, cut)
                                            : test::some_queries(whole, cut, whole.q.shape[2]);
        const AttentionRequest alone = run_anew(part);
        EXPECT_LT(largest_difference(part.out, alone.out), 1e-5) << text << " cut " << cut;
      }
    }
  }
}

// Keys that a mask hides could as well be absent.
TEST_P(Algebra, HiddenKeysCouldBeAbsent) {
  const Problem problem = problem_of("b2 hq2 sq33 skv129 d32 f32 mask=1,1,1,Skv lse seed=5");
  const AttentionRequest& masked = problem.request();
  conformance::for_each_element(masked.attn_mask,
                                [](const std::int64_t(&at)[4], unsigned char* element) {
                                  *element = at[3] * 7 % 11 < 6 ? 1 : 0;
                                });
  const oracle::Truth truth = oracle::compute(masked).value();
  std::vector<std::int64_t> kept;
  conformance::for_each_element(masked.attn_mask,
                                [&](const std::int64_t(&at)[4], unsigned char* m) {
                                  if (*m != 0) kept.push_back(at[3]);
                                });
  ASSERT_GT(kept.size(), 20u);
  ASSERT_LT(kept.size(), 129u);
  AttentionRequest packed = masked;
  packed.attn_mask = {};
  for (TensorView* view : {&packed.k, &packed.v}) {
    TensorView dense = tensors_.copy(*view);
    for (std::size_t n = 0; n < kept.size(); ++n) {
      const TensorView to = test::slice(dense, 2, static_cast<std::int64_t>(n), 1);
      const TensorView from = test::slice(*view, 2, kept[n], 1);
      conformance::for_each_element(from, [&](const std::int64_t(&at)[4], unsigned char* element) {
        const std::int64_t offset = at[0] * to.strides[0] + at[1] * to.strides[1] + at[3];
        std::memcpy(static_cast<char*>(to.data) + offset * 4, element, 4);
      });
    }
    *view = test::slice(dense, 2, 0, static_cast<std::int64_t>(kept.size()));
  }
  expect_within_tolerance(run_anew(packed), truth, "packed");
}

// Tiles that a mask hides are left out, and those that it leaves alone are not masked: padding on
// either side, causal, documents, islands with a gap, a block's one key. What is hidden is NaN.
TEST_P(Algebra, MasksLeaveOutWholeTiles) {
  using Seen = bool (*)(std::int64_t i, std::int64_t j);
  const std::pair<const char*, Seen> masks[] = {
      {"right padding", [](std::int64_t, std::int64_t j) { return j < 200; }},
      {"left padding", [](std::int64_t, std::int64_t j) { return j >= 103; }},
      {"causal", [](std::int64_t i, std::int64_t j) { return j <= i + 200; }},
      {"documents", [](std::int64_t i, std::int64_t j) { return i / 30 == j / 150; }},
      {"islands", [](std::int64_t, std::int64_t j) { return j / 8 == 3 || (j > 70 && j < 75); }},
      {"whole blocks apart", [](std::int64_t, std::int64_t j) { return j / 8 == 3 || j / 8 == 6; }},
      {"one key", [](std::int64_t, std::int64_t j) { return j == 192; }},
      {"last key", [](std::int64_t i, std::int64_t j) { return j == 299 && i != 4; }},
      {"nothing", [](std::int64_t, std::int64_t) { return false; }}};
  for (const char* text : {"b1 hq2 sq57 skv300 d16 f32 mask=1,1,Sq,Skv lse",
                           "b1 hq4 hkv2 sq57 skv300 d40 bf16 mask=1,1,Sq,Skv bias lse",
                           "b1 hq4 hkv1 sq2 skv300 d64 f16 mask=1,1,Sq,Skv lse"}) {
    for (const auto& [name, seen] : masks) {
      const Problem problem = problem_of(text);
      const AttentionRequest& r = problem.request();
      std::vector<bool> is_seen(300, false);
      conformance::for_each_element(
          r.attn_mask, [&, see = seen](const std::int64_t(&at)[4], unsigned char* element) {
            *element = see(at[2], at[3]) ? 1 : 0;
            if (*element != 0) is_seen[static_cast<std::size_t>(at[3])] = true;
          });
      for (const TensorView* view : {&r.k, &r.v}) {
        conformance::for_each_element(
            *view, [&](const std::int64_t(&at)[4], unsigned char* element) {
              if (!is_seen[static_cast<std::size_t>(at[2])]) {
                oracle::encode(std::numeric_limits<double>::quiet_NaN(), element, view->dtype);
              }
            });
      }
      expect_within_tolerance(run_anew(r), oracle::compute(r).value(),
                              std::string(text) + " " + name);
    }
  }
}

// A mask that is broadcast over the keys hides whole rows.
TEST_P(Algebra, AMaskOfRowsHidesRows) {
  const Problem problem = problem_of("b2 hq2 sq33 skv129 d32 f32 mask=B,1,Sq,1 lse seed=5");
  const AttentionRequest& r = problem.request();
  conformance::for_each_element(r.attn_mask,
                                [](const std::int64_t(&at)[4], unsigned char* element) {
                                  *element = at[2] % 3 == 0 ? 0 : 1;
                                });
  expect_within_tolerance(run_anew(r), oracle::compute(r).value(), "rows");
}

REGARD_INSTANTIATE_PROPERTIES(Algebra);

}  // namespace
}  // namespace regard

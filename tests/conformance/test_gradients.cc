#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "conformance/compare.h"
#include "conformance/compare_gradients.h"
#include "conformance/generator.h"
#include "conformance/layout.h"
#include "conformance/problem.h"
#include "oracle/number.h"
#include "tests/support/grad_model.h"
#include "tests/support/wrong_rounding.h"

// The tolerance of gradients: a right backward passes on random cases, one planted error fails.

namespace regard {
namespace {

using conformance::compare_gradients;
using conformance::GradComparison;
using conformance::make_problem;
using conformance::Problem;
using test::GradBreak;
using test::GradModelOptions;
using test::run_grad_model;

constexpr double kNanGrad = std::numeric_limits<double>::quiet_NaN();

GradComparison judged(const Problem& problem, bool rounds_probs = false) {
  const AttentionGradRequest& r = problem.request();
  return compare_gradients(r, oracle::compute_gradients(r).value(),
                           rounds_probs ? r.q.dtype : Dtype::kF32);
}

Problem problem_of(const std::string& text, bool dense = true) {
  return make_problem(parse_case(text).value(), {conformance::Guard::kCanaries, dense});
}

/// The models take no packed sequences, descales and scales, and delta from out as it is stored.
Case simplified(Case c) {
  c.params.features =
      c.params.features.without({Feature::kPacked, Feature::kDescales, Feature::kDescalesPerHead,
                                 Feature::kScales, Feature::kScalesPerToken, Feature::kScalesQ});
  if (is_f8(c.params.dtype_out)) c.params.dtype_out = Dtype::kBf16;
  canonicalize(c);
  conformance::normalize_layout(&c);
  canonicalize(c);
  return c;
}

class RightModels : public testing::TestWithParam<bool> {};

// What the stored rounding of P and dS may cost is in the tolerance as what f32 costs is.
TEST_P(RightModels, PassRandomCases) {
  double margin = 0.0;
  for (std::uint64_t n = 0; n < 100; ++n) {
    const Case c = simplified(conformance::random_grad_case(4, n));
    if (c.params.dtype_k != c.params.dtype_q) continue;
    Problem problem = make_problem(c);
    GradModelOptions options;
    options.rounds_probs = GetParam() && !is_f8(c.params.dtype_q);  // nothing is rounded to 8 bits
    run_grad_model(problem.request(), options);
    const GradComparison comparison = judged(problem, options.rounds_probs);
    EXPECT_TRUE(comparison.ok) << to_string(c) << "\n  " << comparison.text;
    EXPECT_EQ(problem.check_memory(), "") << to_string(c);
    margin = std::max(margin, comparison.margin);
    const AttentionGradRequest& r = problem.request();
    const Dtype probs = options.rounds_probs ? r.q.dtype : Dtype::kF32;
    const conformance::Comparison forward =
        conformance::compare(r, oracle::compute(r).value(), probs);
    EXPECT_TRUE(forward.ok) << to_string(c) << "\n  " << forward.text;
  }
  EXPECT_GT(margin, 0.01);  // something was measured
}

INSTANTIATE_TEST_SUITE_P(Gradients, RightModels, testing::Bool(),
                         [](const auto& param) { return param.param ? "RoundingProbs" : "InF32"; });

struct Planted {
  GradBreak broken;
  const char* text;
  const char* tensor;  // that the comparison names first
};

class BrokenModels : public testing::TestWithParam<Planted> {};

TEST_P(BrokenModels, FailInEveryDtype) {
  for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
    const std::string text = std::string(GetParam().text) + " saved grad " + dtype;
    Problem problem = problem_of(text);
    run_grad_model(problem.request());
    const GradComparison right = judged(problem);
    EXPECT_TRUE(right.ok) << text << ": " << right.text;
    problem.reset_outputs();
    GradModelOptions options;
    options.broken = GetParam().broken;
    run_grad_model(problem.request(), options);
    const GradComparison wrong = judged(problem);
    EXPECT_FALSE(wrong.ok) << text;
    EXPECT_EQ(wrong.text.find(GetParam().tensor), 0u) << wrong.text;
    EXPECT_NE(wrong.text.find("expected "), std::string::npos) << wrong.text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gradients, BrokenModels,
    testing::Values(
        Planted{GradBreak::kDeltaDropped, "b2 hq2 sq17 skv33 d16", "d_q b "},
        Planted{GradBreak::kKeyGradNotScaled, "b1 hq2 sq17 skv33 d16", "d_k b "},
        Planted{GradBreak::kGroupNotSummed, "b1 hq4 hkv2 sq17 skv33 d16", "d_k b "},
        Planted{GradBreak::kDropoutNotScaled, "b1 hq2 sq17 skv33 d16 dropout=0.25", "d_q b "},
        Planted{GradBreak::kSoftcapSlopeMissing, "b1 hq2 sq17 skv33 d16 softcap=5", "d_q b "},
        Planted{GradBreak::kBiasGradNotReduced, "b2 hq2 sq17 skv33 d16 bias=1,H,Sq,Skv", "d_bias "},
        Planted{GradBreak::kFunctionSlopeMissing, "b1 hq2 sq17 skv33 d16 score=0.5*score*score",
                "d_q b "},
        Planted{GradBreak::kFunctionSlopeAtEdited, "b1 hq2 sq17 skv33 d16 score=0.5*score*score",
                "d_q b "},
        Planted{GradBreak::kFunctionSlopeAtEdited, "b1 hq2 sq17 skv33 d16 score=tanh(score)*r0[h]",
                "d_q b "},
        Planted{GradBreak::kCapturedNotSummed, "b2 hq2 sq17 skv33 d16 score=score+r0[kv_idx]",
                "d_captured0 b "},
        Planted{GradBreak::kCapturedNotSummed, "b2 hq2 sq17 skv33 d16 score=score*r3[h,q_idx]",
                "d_captured3 b "},
        Planted{GradBreak::kLseGradIgnored, "b1 hq2 sq17 skv33 d16 d_lse", "d_q b "},
        Planted{GradBreak::kLastTileSkipped, "b1 hq2 sq17 skv33 d16", "d_q b "},
        Planted{GradBreak::kMaskMultiplied, "b1 hq2 sq17 skv33 d16 causal diag=br poison lens",
                "d_q b "}));

TEST(CompareGradients, SixteenBitsAreRoundedToNearest) {
  for (const char* shape : {"b1 hq1 sq300 skv177 d32 causal diag=tl", "b1 hq2 sq65 skv300 d64",
                            "b2 hq4 hkv2 sq66 skv65 d64 sinks"}) {
    for (const char* dtype : {"bf16", "f16"}) {
      const std::string text = std::string(shape) + " saved grad seed=3 " + dtype;
      Problem problem = problem_of(text);
      run_grad_model(problem.request());
      const oracle::GradTruth truth = oracle::compute_gradients(problem.request()).value();
      const AttentionGradRequest& r = problem.request();
      const struct {
        const TensorView& view;
        const oracle::Gradient& gradient;
      } gradients[] = {{r.d_q, truth.d_q}, {r.d_k, truth.d_k}, {r.d_v, truth.d_v}};
      for (const auto& [view, gradient] : gradients) {
        for (const test::Rounding& rounding : test::roundings()) {
          store_all(view, gradient.exact, rounding);
          const GradComparison comparison = compare_gradients(r, truth);
          EXPECT_EQ(comparison.ok, rounding.is_right)
              << text << ", " << rounding.name << ": " << comparison.text;
        }
        store_all(view, gradient.exact, test::roundings().front());
      }
    }
  }
}

// PyTorch's CPU backward: lse absorbs log(n) where every score is finfo.min, and P is 1 for 1 / n.
TEST(GradientsOfHugeBiases, FromAnLseAreNoticed) {
  Problem problem = problem_of("b1 hq1 sq33 skv33 d16 f32 bias=1,1,Sq,1 data=finfo_min saved grad");
  run_grad_model(problem.request());
  EXPECT_TRUE(judged(problem).ok) << judged(problem).text;
  GradModelOptions options;
  options.from_lse = true;
  run_grad_model(problem.request(), options);
  EXPECT_FALSE(judged(problem).ok);
  // Whoever has only the lse cannot know better.
  problem = problem_of("b1 hq1 sq33 skv33 d16 f32 bias=1,1,Sq,1 data=finfo_min lse grad");
  run_grad_model(problem.request());
  EXPECT_TRUE(judged(problem).ok) << judged(problem).text;
}

/// Replaces element (b, h, i, d) of a gradient by `value`; returns what the comparison says.
std::string spoiled(Problem& problem, const TensorView& view, const std::vector<std::int64_t>& at,
                    double value) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < at.size(); ++dim) offset += at[dim] * view.strides[dim];
  void* element = static_cast<char*>(view.data) + offset * size_of(view.dtype);
  const double before = oracle::decode(element, view.dtype);
  oracle::encode(value, element, view.dtype);
  const std::string text = judged(problem).text;
  oracle::encode(before, element, view.dtype);
  return text;
}

TEST(CompareGradients, WhatNothingReachesIsExactlyZero) {
  Problem problem = problem_of("b2 hq2 sq5 skv9 d4 f32 causal diag=tl lens_q=5,2 sinks saved grad");
  run_grad_model(problem.request());
  const AttentionGradRequest& r = problem.request();
  EXPECT_EQ(judged(problem).text, "");
  EXPECT_NE(spoiled(problem, r.d_k, {0, 0, 5, 0}, 1e-30), "");  // no query sees it
  EXPECT_NE(spoiled(problem, r.d_v, {0, 0, 5, 0}, 1e-30), "");
  EXPECT_NE(spoiled(problem, r.d_q, {1, 0, 2, 0}, 1e-30), "");  // padding
  EXPECT_EQ(spoiled(problem, r.d_q, {1, 0, 2, 0}, -0.0), "");
  EXPECT_NE(spoiled(problem, r.d_k, {0, 0, 0, 0}, kNanGrad), "");
  EXPECT_NE(spoiled(problem, r.d_sinks, {1}, 0.5), "");
}

TEST(CompareGradients, NamesTensorPlaceAndBothNumbers) {
  Problem problem = problem_of("b2 hq4 hkv2 sq5 skv7 d4 f32 saved grad");
  run_grad_model(problem.request());
  const std::string text = spoiled(problem, problem.request().d_v, {1, 1, 3, 2}, 7.0);
  EXPECT_EQ(text.find("d_v b 1 h 1 row 3 column 2: expected "), 0u) << text;
  EXPECT_NE(text.find(", actual 7.0"), std::string::npos) << text;
}

// One visible key: dS is 0, and what is left of it is rounding.
TEST(CompareGradients, CancelledGradientsAreJudgedByTheirTerms) {
  Problem problem = problem_of("b1 hq1 sq9 skv9 d64 f32 window=0,0 diag=tl saved grad");
  run_grad_model(problem.request());
  EXPECT_EQ(judged(problem).text, "");
  EXPECT_EQ(spoiled(problem, problem.request().d_q, {0, 0, 3, 5}, 1e-7), "");
  EXPECT_NE(spoiled(problem, problem.request().d_q, {0, 0, 3, 5}, 1e-4), "");
}

TEST(Problem, TheForwardsOutputsAreInputsOfABackward) {
  Problem problem = problem_of("b1 hq2 sq5 skv7 d4 f32 lse saved grad seed=2", false);
  const AttentionGradRequest& r = problem.request();
  EXPECT_EQ(r.saved.kind, SavedContext::Kind::kStats);
  EXPECT_EQ(r.saved.stats.data, r.saved_stats.data);
  run_grad_model(r);
  EXPECT_EQ(problem.check_memory(), "");
  problem.begin_backward();
  run_grad_model(r);  // the same bits once more
  EXPECT_EQ(problem.check_memory(), "");
  oracle::encode(9.0, r.out.data, Dtype::kF32);
  EXPECT_EQ(problem.check_memory(), "bytes of the input out were written");
}

TEST(GradGenerator, CasesParseBackAndHaveSomethingToGoBackFrom) {
  int from_lse = 0, wide = 0;
  for (std::uint64_t n = 0; n < 500; ++n) {
    const Case c = conformance::random_grad_case(13, n);
    ASSERT_EQ(parse_case(to_string(c)).value(), c) << to_string(c);
    const Problem problem = make_problem(c);
    ASSERT_TRUE(describe(problem.request()).ok()) << to_string(c);
    ASSERT_NE(problem.request().saved.kind, SavedContext::Kind::kNone);
    from_lse += problem.request().saved.kind == SavedContext::Kind::kLse ? 1 : 0;
    wide += c.params.head_dim_qk >= 192 ? 1 : 0;
  }
  EXPECT_GT(from_lse, 50);
  EXPECT_GT(wide, 20);
}

}  // namespace
}  // namespace regard

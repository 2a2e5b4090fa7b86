#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "conformance/compare.h"
#include "conformance/problem.h"
#include "conformance/tolerance.h"
#include "oracle/number.h"
#include "tests/support/wrong_rounding.h"

// The tolerance itself: what it lets pass and what it does not.

namespace regard {
namespace {

using conformance::compare;
using conformance::Comparison;
using conformance::judge;
using conformance::Judgement;
using conformance::Problem;
using conformance::Sample;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Sample> samples(int count, double ideal_error, double error) {
  std::vector<Sample> all;
  for (int n = 0; n < count; ++n) all.push_back({n, 0, 1.0L, 1.0 + ideal_error, 1.0 + error, 0.0});
  return all;
}

TEST(Tolerance, IsOneAndAHalfTimesTheIdealAndTheFloor) {
  EXPECT_TRUE(judge(samples(10, 1e-3, 1.49e-3), 0.0).ok);
  EXPECT_FALSE(judge(samples(10, 1e-3, 1.51e-3), 0.0).ok);
  EXPECT_TRUE(judge(samples(10, 1e-3, 1.59e-3), 1e-4).ok);
  EXPECT_NEAR(judge(samples(10, 1e-3, 0.75e-3), 0.0).margin, 0.5, 1e-6);
}

TEST(Tolerance, HoldsTheRootMeanSquareToo) {
  // One bad ideal element allows one bad element, not ten.
  std::vector<Sample> all = samples(10, 0.0, 1e-3);
  all[3].ideal = 1.0 + 1e-3;
  EXPECT_FALSE(judge(all, 0.0).ok);
  for (Sample& s : all) s.actual = 1.0;
  all[5].actual = 1.0 + 1e-3;
  EXPECT_TRUE(judge(all, 0.0).ok);
}

TEST(Tolerance, ARowsOwnFloorIsItsOwn) {
  std::vector<Sample> all = samples(4, 0.0, 0.0);
  all[2].row_floor = 1e-3;
  all[2].actual = 1.0 + 0.9e-3;
  EXPECT_TRUE(judge(all, 0.0).ok);
  all[1].actual = 1.0 + 1e-6;
  const Judgement judgement = judge(all, 0.0);
  EXPECT_FALSE(judgement.ok);
  EXPECT_NE(judgement.text.find("row 1 column 0: expected 1.0"), std::string::npos)
      << judgement.text;
}

/// 64 rows of 256 values of bf16, of which `own_floor` states what may be off; actual =
/// f(expected).
std::string mean_error_of(double own_floor, double (*f)(double expected)) {
  conformance::MeanSignedError mean(Dtype::kBf16, 0);
  std::vector<Sample> all;
  for (int n = 0; n < 64 * 256; ++n) {
    const double expected = (n % 2 == 0 ? 1.0 : -1.0) * (1.0 + 3.0 * n / 16384.0);
    all.push_back({n / 256, n % 256, expected, expected, f(expected), own_floor});
  }
  mean.add(all);
  return mean.check();
}

TEST(Tolerance, WhatCancellingLeftIsNoRounding) {
  const auto nothing = [](double) { return 0.0; };
  EXPECT_EQ(mean_error_of(10.0, nothing), "");
  EXPECT_NE(mean_error_of(0.5, nothing), "");
  const auto truncated = [](double x) { return std::trunc(x * 64.0) / 64.0; };
  EXPECT_NE(mean_error_of(0.0, truncated), "");
}

TEST(Tolerance, NanAndInfinitiesMustLieWhereTheTruthsDo) {
  const auto one = [](long double expected, double actual) {
    return judge({{0, 0, expected, 0.0, actual, 1e9}}, 1e9).ok;
  };
  EXPECT_TRUE(one(kNan, kNan));
  EXPECT_TRUE(one(HUGE_VAL, HUGE_VAL));
  EXPECT_FALSE(one(kNan, 1.0));
  EXPECT_FALSE(one(1.0, kNan));
  EXPECT_FALSE(one(HUGE_VAL, -HUGE_VAL));
  EXPECT_FALSE(one(-HUGE_VAL, -3e38));
  EXPECT_FALSE(one(3e38, HUGE_VAL));
}

/// A problem whose outputs are the truth, so that a test can spoil one number.
class Compare : public testing::Test {
 protected:
  void prepare(const std::string& text) {
    problem_ = conformance::make_problem(parse_case(text).value());
    truth_ = oracle::compute(problem_.request()).value();
    write(problem_.request().out, truth_.out);
    if (problem_.request().lse.present()) write(problem_.request().lse, truth_.lse);
    if (problem_.request().scores_out.present())
      write(problem_.request().scores_out, truth_.scores);
    const Comparison right = compare(problem_.request(), truth_);
    ASSERT_TRUE(right.ok) << right.text;
  }
  static void write(const TensorView& view, const std::vector<long double>& numbers) {
    std::size_t n = 0;
    conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
      oracle::encode(static_cast<double>(numbers[n++]), element, view.dtype);
    });
  }
  /// Replaces element (b, h, i, d) of a view by f(it); returns what compare() says, and puts it
  /// back.
  template <class F>
  std::string spoiled(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t i,
                      std::int64_t d, F f) {
    const std::int64_t index[] = {b, h, i, d};
    unsigned char* element = static_cast<unsigned char*>(view.data);
    for (int dim = 0; dim < view.rank; ++dim) {
      element += index[dim] * view.strides[dim] * size_of(view.dtype);
    }
    const double value = oracle::decode(element, view.dtype);
    oracle::encode(f(value), element, view.dtype);
    const Comparison comparison = compare(problem_.request(), truth_);
    oracle::encode(value, element, view.dtype);
    EXPECT_EQ(comparison.ok, comparison.text.empty());
    return comparison.text;
  }

  Problem problem_;
  oracle::Truth truth_;
};

double plus_a_thousandth(double x) { return x + 1e-3; }

TEST_F(Compare, NamesTensorPlaceAndBothNumbers) {
  prepare("b2 hq3 sq5 skv7 d4 f32 lse seed=1");
  const std::string out = spoiled(problem_.request().out, 1, 2, 3, 1, plus_a_thousandth);
  EXPECT_EQ(out.find("out b 1 h 2 row 3 column 1: expected "), 0u) << out;
  EXPECT_NE(out.find(", actual "), std::string::npos);
  EXPECT_EQ(
      spoiled(problem_.request().lse, 1, 2, 4, 0, plus_a_thousandth).find("lse b 1 h 2 row 4"), 0u);
}

TEST_F(Compare, AUnitInTheLastPlaceIsNoError) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    prepare(std::string("b1 hq1 sq5 skv7 d4 lse seed=2 ") + dtype);
    const double u = oracle::unit_roundoff(problem_.request().out.dtype);
    const auto by = [&](double units) {
      return spoiled(problem_.request().out, 0, 0, 1, 1, [&](double x) { return x + units * u; });
    };
    EXPECT_EQ(by(1.0), "") << dtype;
    EXPECT_NE(by(40.0), "") << dtype;
  }
}

// Kernels that differ from a right one in nothing but how they store 16 bits.
TEST_F(Compare, SixteenBitsAreRoundedToNearest) {
  for (const char* shape : {"b1 hq1 sq300 skv77 d32", "b1 hq2 sq65 skv300 d128 causal diag=br",
                            "b2 hq4 hkv2 sq33 skv17 d64 sinks"}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      const std::string text = std::string(shape) + " seed=3 " + to_string(dtype);
      prepare(text);
      for (const test::Rounding& rounding : test::roundings()) {
        store_all(problem_.request().out, truth_.out, rounding);
        EXPECT_EQ(compare(problem_.request(), truth_).ok, rounding.is_right)
            << text << ": " << rounding.name;
      }
    }
  }
}

TEST_F(Compare, PaddingAndDeadRowsAreExactlyZero) {
  prepare("b2 hq1 sq5 skv3 d4 f32 lens_q=5,2 causal diag=br lse seed=3");
  const auto tiny = [](double) { return 1e-30; };
  EXPECT_NE(spoiled(problem_.request().out, 0, 0, 0, 0, tiny), "");  // sees no key
  EXPECT_NE(spoiled(problem_.request().out, 1, 0, 4, 0, tiny), "");  // past the length
  EXPECT_EQ(spoiled(problem_.request().out, 1, 0, 4, 0, [](double) { return -0.0; }), "");
  EXPECT_NE(spoiled(problem_.request().lse, 1, 0, 4, 0, [](double) { return -3e38; }), "");
  const Comparison comparison = compare(problem_.request(), truth_);
  EXPECT_EQ(comparison.padding_rows, 3);
  EXPECT_EQ(comparison.dead_rows, 2);
  EXPECT_EQ(comparison.rows, 10);
}

TEST_F(Compare, RowsOfHugeScoresAreJudgedByStructure) {
  prepare("b1 hq1 sq65 skv9 d4 f32 bias=1,1,Sq,1 data=finfo_min lse seed=4");
  std::int64_t row = 0;
  while (truth_.rows[static_cast<std::size_t>(row)].smax < 1e30) ++row;
  const AttentionRequest& r = problem_.request();
  EXPECT_NE(spoiled(r.out, 0, 0, row, 0, [](double) { return kNan; }), "");
  EXPECT_NE(spoiled(r.out, 0, 0, row, 0, [](double) { return 4.0; }), "");  // above every value
  EXPECT_NE(spoiled(r.out, 0, 0, row, 0, [](double x) { return x + 1e-5; }), "");  // not the mean
  EXPECT_EQ(spoiled(r.out, 0, 0, row, 0, [](double x) { return x + 1e-7; }), "");
  EXPECT_GT(compare(r, truth_).structural_rows, 5);
}

// All pages are one, of one row: every addition rounds in the same direction.
TEST_F(Compare, EqualScoresOfValuesThatAreAlikeMayLoseWhatAChainDoes) {
  prepare(
      "b2 hq1 hkv1 sq3 skv127 d32 f64 paged page_size=1 num_pages=256 hadamard cache_leftpad "
      "softcap=1 bias=1,1,Sq,Skv bias_dtype=f64 lens_kv=0,127 seed=14170688 data=finfo_min");
  const AttentionRequest& r = problem_.request();
  ASSERT_EQ(r.v.strides[0], 0);
  const std::size_t row = 3;  // of sequence 1, which has keys
  const oracle::RowFacts& f = truth_.rows[row];
  ASSERT_TRUE(f.equal_scores && f.visible_keys == 122 && f.smax > 1e300);
  write(r.out, {truth_.out_ideal.begin(), truth_.out_ideal.end()});
  double worst = 0.0;
  for (std::size_t at = row * 32; at < (row + 1) * 32; ++at) {
    const auto error = static_cast<double>(std::fabs(truth_.out_ideal[at] - truth_.out[at]));
    worst = std::max(worst, error / (f.max_abs_v * oracle::unit_roundoff(Dtype::kF64)));
  }
  EXPECT_GT(worst, 20.0);  // u max|V|
  EXPECT_EQ(compare(r, truth_).text, "");
  const auto by = [&](double units) {
    return spoiled(r.out, 1, 0, 0, 5, [&](double x) {
      return x + units * f.max_abs_v * oracle::unit_roundoff(Dtype::kF64);
    });
  };
  EXPECT_EQ(by(4.0), "");
  EXPECT_NE(by(100.0), "");  // 4 + 123 / 2 are allowed
  EXPECT_NE(by(-100.0), "");
}

TEST_F(Compare, ScoresBehindMasksAreExact) {
  prepare("b1 hq2 sq5 skv9 d4 f32 causal diag=tl scores=edited seed=5");
  const TensorView& edited = problem_.request().scores_out;
  EXPECT_NE(spoiled(edited, 0, 1, 2, 3, [](double) { return -3e38; }), "");
  EXPECT_NE(spoiled(edited, 0, 1, 2, 2, plus_a_thousandth), "");
  prepare("b1 hq2 sq5 skv9 d4 f32 causal diag=tl scores=probs seed=5");
  EXPECT_NE(spoiled(problem_.request().scores_out, 0, 1, 2, 3, [](double) { return 1e-30; }), "");
}

TEST_F(Compare, SavedStatisticsGiveTheLse) {
  // Written by hand: (max, sum), dead rows (-inf, 0).
  prepare("b1 hq1 sq5 skv3 d4 f32 causal diag=br lse seed=6");
  std::vector<float> stats;
  for (const long double lse : truth_.lse) {
    stats.push_back(std::isinf(lse) ? -HUGE_VALF : static_cast<float>(lse - std::log(2.0L)));
    stats.push_back(std::isinf(lse) ? 0.0f : 2.0f);
  }
  Buffers buffers = problem_.request();
  buffers.saved_stats = make_view(stats.data(), Dtype::kF32, {1, 1, 5, 2});
  EXPECT_TRUE(compare(buffers, truth_).ok) << compare(buffers, truth_).text;
  stats[1] = 1.0f;  // of a dead row
  EXPECT_FALSE(compare(buffers, truth_).ok);
  stats[1] = 0.0f;
  stats[9] = 2.1f;
  EXPECT_FALSE(compare(buffers, truth_).ok);
}

}  // namespace
}  // namespace regard

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/captured.h"
#include "conformance/problem.h"
#include "conformance/random_function.h"
#include "conformance/rng.h"
#include "oracle/evaluate.h"
#include "oracle/expression.h"
#include "oracle/functions.h"
#include "regard/case.h"

// Random functions: what the oracle states of their errors, their types and their texts.

namespace regard {
namespace {

using conformance::random_functions;
using conformance::RandomFunctions;
using conformance::Rng;
using oracle::Evaluator;
using oracle::Function;
using oracle::FunctionPlace;
using oracle::FunctionResult;
using oracle::NodeType;
using oracle::ScoreError;

constexpr double kU32 = 0x1p-24;

Case small_case() { return parse_case("b3 hq4 sq20 skv33 d8 f32 diag=br lens").value(); }

/// A case with random functions, and the tensors that they read.
struct RandomCase {
  explicit RandomCase(std::uint64_t n) {
    Rng rng(n, 0x746573742066);
    c = small_case();
    const RandomFunctions made = random_functions(c.params, true, true, &rng);
    c.params.score_function = Expression::parse(made.score).value();
    c.params.mask_function = Expression::parse(made.mask).value();
    c.data.seed = n + 1;
    canonicalize(c);
  }
  Case c;
};

FunctionPlace random_place(Rng* rng) {
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int32_t>(rng->between(0, below - 1));
  };
  FunctionPlace place{draw(3), draw(4), draw(20), draw(33), 0, 0, 0};
  place.q_len = place.q_idx + 1 + draw(20 - place.q_idx);
  place.kv_len = place.kv_idx + 1 + draw(33 - place.kv_idx);
  place.q_pos = place.q_idx + place.kv_len - place.q_len;
  return place;
}

/// How many of its stated errors `actual` is off by.
double share(double actual, double expected, double error) {
  if (actual == expected || (std::isnan(actual) && std::isnan(expected))) return 0.0;
  if (std::isinf(error)) return 0.0;
  return std::fabs(actual - expected) / (kU32 * error);
}

struct Shares {
  double value = 0.0, slope = 0.0, element = 0.0;
};

/// The function in f32 with a score that is off by its error, against what the truth states.
Shares measure(const Function& function, const TensorView* captured, const FunctionPlace& place,
               Rng* rng) {
  Evaluator<double> exact(function, captured);
  Evaluator<float> rounded(function, captured);
  const double score = 3.0 * rng->normal_at(rng->bits());
  const double given = rng->chance(0.3) ? 1.0 : 20.0 * std::fabs(score);
  const double off = (2.0 * rng->uniform() - 1.0) * (given - std::fabs(score)) * kU32;
  exact.analyse(place, score, {std::max(given, std::fabs(score)), 4.0, false});
  const FunctionResult<double> truth = exact.differentiate();
  rounded.value(place, static_cast<float>(score + (given > std::fabs(score) ? off : 0.0)));
  const FunctionResult<float> actual = rounded.differentiate();
  Shares shares{share(actual.value, truth.value, truth.error),
                share(actual.slope, truth.slope, truth.slope_size), 0.0};
  if (truth.error * kU32 > 1e-3) return {};  // a branch that rounding decides
  for (const oracle::ElementSlope<double>& element : truth.elements) {
    const auto same = [&](const auto& other) {
      return other.slot == element.slot && std::equal(other.index, other.index + 4, element.index);
    };
    // One that is 0 in f32 is not listed.
    double expected = 0.0, slope = 0.0, size = 0.0;
    for (const auto& other : truth.elements) {
      expected += same(other) ? other.slope : 0.0;
      size += same(other) ? other.size : 0.0;
    }
    for (const auto& other : actual.elements) slope += same(other) ? double{other.slope} : 0.0;
    shares.element = std::max(shares.element, share(slope, expected, size));
  }
  return shares;
}

// The errors that the oracle states hold: a first-order bound, so some more than 1 of them is
// allowed. The tolerance takes 4.
TEST(RandomFunctions, InF32StayWithinTheErrorsStated) {
  Shares largest;
  std::int64_t measured = 0;
  for (std::uint64_t n = 0; n < 1500; ++n) {
    const RandomCase random(n);
    const conformance::Problem problem = conformance::make_problem(random.c);
    const AttentionRequest& r = problem.request();
    TensorView captured[oracle::kCapturedCount];
    for (int k = 0; k < oracle::kCapturedCount; ++k) captured[k] = r.*oracle::kCaptured[k];
    const Function function = Function::parse(random.c.params.score_function.text()).value();
    Rng rng(n, 0x706c61636573);
    for (int k = 0; k < 8; ++k, ++measured) {
      const Shares s = measure(function, captured, random_place(&rng), &rng);
      largest.value = std::max(largest.value, s.value);
      largest.slope = std::max(largest.slope, s.slope);
      largest.element = std::max(largest.element, s.element);
      ASSERT_LE(std::max({s.value, s.slope, s.element}), 1.5)
          << random.c.params.score_function.text() << " value " << s.value << " slope " << s.slope
          << " element " << s.element;
    }
  }
  RecordProperty("largest_value", std::to_string(largest.value));
  RecordProperty("largest_slope", std::to_string(largest.slope));
  EXPECT_GT(largest.value, 0.2);  // and they are no more than a few times too large
  EXPECT_GT(largest.slope, 0.2);
  EXPECT_EQ(measured, 12000);
}

NodeType type_of(const Expression& e) { return static_cast<NodeType>(e.type()); }

TEST(RandomFunctions, HaveTheTypesThatTheLibraryFinds) {
  static_assert(static_cast<int>(ValueType::kReal) == static_cast<int>(NodeType::kReal));
  static_assert(static_cast<int>(ValueType::kBool) == static_cast<int>(NodeType::kBool));
  for (std::uint64_t n = 0; n < 3000; ++n) {
    const RandomCase random(n);
    for (const Expression* e : {&random.c.params.score_function, &random.c.params.mask_function}) {
      ASSERT_TRUE(e->status().ok()) << e->text();
      const Expected<Function> read = Function::parse(e->text());
      ASSERT_TRUE(read.ok()) << read.status().to_string();
      ASSERT_EQ(type_of(*e), read->type()) << e->text();
      const Expected<Expression> again = Expression::parse(e->text());
      ASSERT_TRUE(again.ok()) << again.status().to_string();
      ASSERT_EQ(again->text(), e->text());
      ASSERT_TRUE(*again == *e);
    }
  }
}

TEST(RandomFunctions, DrawEveryOperator) {
  std::vector<int> seen(static_cast<std::size_t>(oracle::NodeOp::kGather) + 1);
  for (std::uint64_t n = 0; n < 500; ++n) {
    const RandomCase random(n);
    for (const Expression* e : {&random.c.params.score_function, &random.c.params.mask_function}) {
      const Function function = Function::parse(e->text()).value();
      for (const oracle::Node& node : function.nodes()) {
        ++seen[static_cast<std::size_t>(node.op)];
      }
    }
  }
  for (std::size_t n = 0; n < seen.size(); ++n) {
    EXPECT_GE(seen[n], 10) << oracle::name_of(static_cast<oracle::NodeOp>(n));
  }
}

}  // namespace
}  // namespace regard

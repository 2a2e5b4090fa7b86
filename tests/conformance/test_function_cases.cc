#include <gtest/gtest.h>

#include <string>

#include "conformance/generator.h"
#include "tests/support/all_units.h"
#include "tests/support/fixed_cases.h"
#include "tests/support/fixed_functions.h"

// Score and mask functions on every unit of every backend, in every type: chosen cases, texts as
// long and as deep as they may be, and random ones.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Outcome;
using test::AllUnits;
using test::Forced;

/// Runs the case in a type; expects every unit to pass where `math_only` does not leave it to MATH.
void expect_passes(const std::string& text, int round) {
  const Expected<Case> parsed = parse_case(text);
  const bool is_f64 = text.ends_with(" f64");
  if (!parsed && is_f64 && text.find("callback") != std::string::npos) return;  // f32 alone
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  conformance::RunOptions options;
  options.guard = round % 2 == 0 ? Guard::kUpperPage : Guard::kLowerPage;
  const FeatureSet features = parsed->params.features;
  const bool math_only = is_f64 || features.has(Feature::kScoresOut);
  const bool has_wide_heads = parsed->params.head_dim_qk > 576;  // FLASH has none
  AllUnits::instance().run(
      *parsed, options, [&](const Forced& forced, const conformance::Report& report) {
        const bool is_math = forced.backend == test::kMathRef;
        const bool refuses =
            !is_math && (math_only || (has_wide_heads && forced.backend.id == BackendId::kFlash));
        EXPECT_EQ(report.outcome, refuses ? Outcome::kRefused : Outcome::kPassed)
            << test::name_of(forced) << " " << text << ": " << report.text;
      });
}

class FunctionCases : public testing::TestWithParam<const char*> {};

TEST_P(FunctionCases, PassInTheirTypes) {
  int round = 0;
  constexpr const char* kTypes[] = {"f32", "bf16", "f16", "f64"};
  for (const std::string& dtype : test::types_of(GetParam(), kTypes)) {
    expect_passes(std::string(GetParam()) + " " + dtype, round++);
  }
}

INSTANTIATE_TEST_SUITE_P(Forward, FunctionCases,
                         testing::ValuesIn(test::function_cases().begin(),
                                           test::function_cases().end()));
INSTANTIATE_TEST_SUITE_P(Backward, FunctionCases,
                         testing::ValuesIn(test::function_grad_cases().begin(),
                                           test::function_grad_cases().end()));

/// `operand` again and again, `depth` operators within each other, at the left or the right.
std::string nested(int depth, bool at_the_left, const std::string& operand) {
  std::string text = operand;
  for (int n = 0; n < depth; ++n) {
    text = at_the_left ? "(" + text + ")*0.5+" + operand : operand + "+0.5*(" + text + ")";
  }
  return text;
}

/// A sum of products: all of them are values at the same time where nothing is reused.
std::string wide_sum(int depth, int* leaf) {
  if (depth == 0) {
    const std::string n = std::to_string((*leaf)++);
    return "tanh(score*0." + n + "+0.01*q_idx)";
  }
  const std::string left = wide_sum(depth - 1, leaf);
  return "(" + left + "+" + wide_sum(depth - 1, leaf) + ")*0.5";
}

TEST(LongFunctions, PassOnEveryUnit) {
  int leaf = 1;
  const std::string texts[] = {
      nested(31, true, "score"), nested(31, false, "score"), nested(15, true, "r0[kv_idx%9]*score"),
      nested(10, false, "sigmoid(score+r1[q_idx%5,h])"), wide_sum(4, &leaf)};
  for (const std::string& function : texts) {
    const Expected<Expression> parsed = Expression::parse(function);
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    for (const char* rest : {" lse", " saved grad"}) {
      expect_passes("b2 hq2 sq20 skv70 d16 score=" + parsed->text() + rest + " f32", 0);
    }
  }
}

// `regard check --random` runs thousands of these, on every backend.
TEST(RandomFunctionCases, PassOnEveryUnit) {
  int passed = 0, cases = 0;
  for (std::uint64_t n = 0; cases < 150; ++n) {
    const Case c =
        n % 2 == 0 ? conformance::random_case(33, n) : conformance::random_grad_case(33, n);
    const FeatureSet f = c.params.features;
    if (!f.has(Feature::kScoreFunction) && !f.has(Feature::kMaskFunction) &&
        !f.has(Feature::kScoreCallback)) {
      continue;
    }
    ++cases;
    conformance::RunOptions options;
    options.guard = n % 3 == 0 ? Guard::kLowerPage : Guard::kCanaries;
    passed += AllUnits::instance().run(c, options);
    if (HasFailure()) return;
  }
  EXPECT_GT(passed, 300);
}

}  // namespace
}  // namespace regard

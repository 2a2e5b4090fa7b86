#include <gtest/gtest.h>

#include <memory>

#include "tests/support/backends.h"
#include "tests/support/expected_refusals.h"
#include "tests/support/literals.h"

// docs/semantics.md, one literal row a meaning, on every unit of every backend.

namespace regard {
namespace {

using test::Forced;
using test::Literal;

/// Runs the literal in `dtype`; false where the backend says that it will not.
bool run(const Forced& forced, const Literal& literal, Dtype dtype, double tolerance) {
  const test::LiteralProblem problem(literal, dtype);
  const std::unique_ptr<Context> context = test::make_context(forced.isa);
  const Expected<AttentionParams> params = describe(problem.request);
  EXPECT_TRUE(params.ok()) << params.status().to_string();
  if (!params.ok()) return false;
  const Selection selection = explain(*context, *params);
  const Verdict& verdict = *selection.find(forced.backend);
  if (!verdict.usable) {
    EXPECT_EQ(test::ExpectedRefusals().check(verdict), "");
    return false;
  }
  test::run_forced(*context, problem.request, forced);
  EXPECT_EQ(test::difference(problem.request.out, literal.out, tolerance), "");
  if (!literal.lse.empty()) {
    EXPECT_EQ(test::difference(problem.request.lse, literal.lse, tolerance), "");
  }
  if (!literal.scores.empty()) {
    EXPECT_EQ(test::difference(problem.request.scores_out, literal.scores, tolerance), "");
  }
  return true;
}

class Semantics : public testing::TestWithParam<Literal> {};

TEST_P(Semantics, AreTheLiteralRowsOnEveryUnit) {
  const Literal& literal = GetParam();
  for (const Forced& forced : test::forced_backends()) {
    SCOPED_TRACE(test::name_of(forced));
    const bool in_f32 = run(forced, literal, Dtype::kF32, 1e-6);
    const bool in_f64 =
        run(forced, literal, Dtype::kF64, literal.bias.shape.empty() ? 1e-13 : 1e-7);
    // Silence is no claim: MATH runs every row in both, the others every row without scores_out.
    if (forced.backend == test::kMathRef) {
      EXPECT_TRUE(in_f32 && in_f64);
    } else {
      EXPECT_TRUE(in_f32 || !literal.scores.empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Semantics, testing::ValuesIn(test::literals()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace regard

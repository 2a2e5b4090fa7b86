#include <gtest/gtest.h>

#include <set>
#include <string>

#include "oracle/number.h"
#include "oracle/oracle.h"
#include "tests/support/literals.h"

// The oracle against pencil and paper.

namespace regard {
namespace {

using test::Literal;

/// A row-major vector as a tensor, for test::difference.
TensorView view_of(std::vector<double>& numbers) {
  return make_view(numbers.data(), Dtype::kF64, {static_cast<std::int64_t>(numbers.size())});
}

std::vector<double> doubles(const std::vector<long double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

class OracleLiterals : public testing::TestWithParam<Literal> {
 protected:
  void expect(Dtype dtype, double tolerance) {
    const test::LiteralProblem problem(GetParam(), dtype);
    const Expected<oracle::Truth> truth = oracle::compute(problem.request);
    ASSERT_TRUE(truth.ok()) << truth.status().to_string();
    std::vector<double> out = doubles(truth->out), lse = doubles(truth->lse);
    EXPECT_EQ(test::difference(view_of(out), GetParam().out, tolerance), "");
    if (!GetParam().lse.empty()) {
      EXPECT_EQ(test::difference(view_of(lse), GetParam().lse, tolerance), "");
    }
    std::vector<double> scores = doubles(truth->scores);
    if (!GetParam().scores.empty()) {
      EXPECT_EQ(test::difference(view_of(scores), GetParam().scores, tolerance), "");
    }
    std::vector<double> ideal = truth->out_ideal;
    EXPECT_EQ(test::difference(view_of(ideal), GetParam().out, 1e-6), "");
  }
};

// ln 2 and its like are no f32 numbers: inputs in f32 are off by 6e-8.
TEST_P(OracleLiterals, InF64) { expect(Dtype::kF64, GetParam().bias.shape.empty() ? 1e-14 : 1e-7); }
TEST_P(OracleLiterals, InF32) { expect(Dtype::kF32, 2e-7); }

INSTANTIATE_TEST_SUITE_P(Semantics, OracleLiterals, testing::ValuesIn(test::literals()),
                         [](const auto& param) { return param.param.name; });

TEST(Literals, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Literal& literal : test::literals()) {
    EXPECT_TRUE(names.insert(literal.name).second) << literal.name;
  }
  EXPECT_GE(names.size(), 50u);
}

TEST(Oracle, RefusesShapesThatDoNotFit) {
  Literal literal = test::literals().front();
  test::LiteralProblem problem(literal, Dtype::kF32);
  problem.request.k.shape[2] += 1;
  const Expected<oracle::Truth> truth = oracle::compute(problem.request);
  ASSERT_FALSE(truth.ok());
  EXPECT_NE(truth.status().message().find("f32[1,1,4,1]"), std::string::npos)
      << truth.status().message();
}

}  // namespace
}  // namespace regard

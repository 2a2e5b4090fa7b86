#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <tuple>

#include "tests/support/backends.h"
#include "tests/support/fixed_cases.h"

// Hand-picked cases on every unit of every backend: each feature, odd sizes round the tiles, dead
// rows, poison, empty sizes; between guard pages, twice on different workspaces.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Outcome;
using test::Forced;

class Cases : public testing::TestWithParam<std::tuple<Forced, const char*>> {};

TEST_P(Cases, PassInEveryDtype) {
  const auto& [forced, text] = GetParam();
  const std::unique_ptr<Context> context = test::make_context(forced.isa);
  const bool is_math = forced.backend == test::kMathRef;
  int round = 0;
  for (const char* dtype :
       {"f32", "bf16", "f16", "f64", "bf16 out=f32", "f8e4m3", "f8e5m2 out=f32"}) {
    const Case c = parse_case(std::string(text) + " " + dtype).value();
    conformance::RunOptions options;
    options.guard = round++ % 2 == 0 ? Guard::kUpperPage : Guard::kLowerPage;
    const conformance::Report report = run_case(*context, c, forced.backend, options);
    EXPECT_TRUE(report.ok()) << report.text;
    EXPECT_EQ(test::check_unit(report, forced), "");
    // Every backend but MATH leaves f64 and scores_out alone.
    const bool math_only =
        c.params.dtype_q == Dtype::kF64 || c.params.features.has(Feature::kScoresOut);
    EXPECT_EQ(report.outcome, is_math || !math_only ? Outcome::kPassed : Outcome::kRefused)
        << to_string(c) << ": " << report.text;
  }
}

class LongHeads : public testing::TestWithParam<Forced> {};

// Tiles of the fewest keys, in parts that end within a tile of more; FLASH refuses such head dims.
TEST_P(LongHeads, Pass) {
  const std::unique_ptr<Context> context = test::make_context(GetParam().isa);
  for (const char* text : {"b1 hq1 sq1 skv590 d4097 f32", "b1 hq3 hkv1 sq1 skv1100 d3 dv9001 bf16",
                           "b1 hq2 sq20 skv70 d5000 dv1 f32 saved grad"}) {
    conformance::RunOptions options;
    options.guard = Guard::kUpperPage;
    const conformance::Report report =
        run_case(*context, parse_case(text).value(), GetParam().backend, options);
    EXPECT_TRUE(report.ok()) << report.text;
    const bool refuses = GetParam().backend.id == BackendId::kFlash;
    EXPECT_EQ(report.outcome, refuses ? Outcome::kRefused : Outcome::kPassed) << report.text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LongHeads, testing::ValuesIn(test::forced_backends()),
                         [](const auto& param) { return test::name_of(param.param); });

INSTANTIATE_TEST_SUITE_P(All, Cases,
                         testing::Combine(testing::ValuesIn(test::forced_backends()),
                                          testing::ValuesIn(test::forward_cases().begin(),
                                                            test::forward_cases().end())),
                         [](const auto& param) {
                           std::string name = test::name_of(std::get<0>(param.param)) + "_";
                           for (const char* c = std::get<1>(param.param); *c != 0; ++c) {
                             name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace regard

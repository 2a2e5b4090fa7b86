#include <gtest/gtest.h>

#include <cctype>
#include <string>

#include "tests/support/all_units.h"
#include "tests/support/fixed_cases.h"

// Hand-picked cases on every unit of every backend: each feature, odd sizes round the tiles, dead
// rows, poison, empty sizes; between guard pages, twice on different workspaces.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Outcome;
using test::AllUnits;
using test::Forced;

class Cases : public testing::TestWithParam<const char*> {};

TEST_P(Cases, PassInTheirTypes) {
  int round = 0;
  constexpr const char* kTypes[] = {"f32",          "bf16",   "f16",           "f64",
                                    "bf16 out=f32", "f8e4m3", "f8e5m2 out=f32"};
  for (const std::string& dtype : test::types_of(GetParam(), kTypes)) {
    const Case c = parse_case(std::string(GetParam()) + " " + dtype).value();
    conformance::RunOptions options;
    options.guard = round++ % 2 == 0 ? Guard::kUpperPage : Guard::kLowerPage;
    // Every backend but MATH leaves f64 and scores_out alone.
    const bool math_only =
        c.params.dtype_q == Dtype::kF64 || c.params.features.has(Feature::kScoresOut);
    AllUnits::instance().run(
        c, options, [&](const Forced& forced, const conformance::Report& report) {
          const bool is_math = forced.backend == test::kMathRef;
          EXPECT_EQ(report.outcome, is_math || !math_only ? Outcome::kPassed : Outcome::kRefused)
              << to_string(c) << ": " << report.text;
        });
  }
}

// Tiles of the fewest keys, in parts that end within a tile of more; FLASH refuses such head dims.
TEST(LongHeads, PassOnEveryUnit) {
  for (const char* text : {"b1 hq1 sq1 skv590 d4097 f32", "b1 hq3 hkv1 sq1 skv1100 d3 dv9001 bf16",
                           "b1 hq2 sq20 skv70 d5000 dv1 f32 saved grad"}) {
    conformance::RunOptions options;
    options.guard = Guard::kUpperPage;
    AllUnits::instance().run(
        parse_case(text).value(), options,
        [](const Forced& forced, const conformance::Report& report) {
          const bool refuses = forced.backend.id == BackendId::kFlash;
          EXPECT_EQ(report.outcome, refuses ? Outcome::kRefused : Outcome::kPassed) << report.text;
        });
  }
}

// All pages are one, of one row: the roundings of its sum have one sign.
TEST(EqualScores, OfValuesThatAreAlikeGiveTheirMean) {
  for (const char* dtype : {"f64", "f32", "bf16 out=f32"}) {
    const Case c =
        parse_case(std::string("b2 hq2 hkv2 sq69 skv127 d3 paged page_size=1 num_pages=256 causal "
                               "diag=seq window=86,0 bias=B,1,Sq,1 bias_dtype=f64 lens_kv=126,101 "
                               "layout=bshd align_k=8 seed=14995193 data=finfo_min ") +
                   dtype)
            .value();
    AllUnits::instance().run(c, {}, [&](const Forced& forced, const conformance::Report& report) {
      const bool runs = forced.backend == test::kMathRef || c.params.dtype_q != Dtype::kF64;
      EXPECT_EQ(report.outcome, runs ? Outcome::kPassed : Outcome::kRefused) << report.text;
      if (!runs) return;
      EXPECT_GT(report.comparison.structural_rows, 20) << report.text;
    });
  }
}

TEST(Rounding, IsToNearestOnEveryUnit) {
  for (const char* text : test::rounding_cases()) {
    AllUnits::instance().run(parse_case(text).value(), {},
                             [](const Forced&, const conformance::Report& report) {
                               EXPECT_EQ(report.outcome, Outcome::kPassed) << report.text;
                             });
  }
}

std::string name_of_case(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Cases,
                         testing::ValuesIn(test::forward_cases().begin(),
                                           test::forward_cases().end()),
                         name_of_case);

}  // namespace
}  // namespace regard

#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <tuple>

#include "tests/support/backends.h"

// Hand-picked cases on every unit of every backend: each feature, odd sizes round the tiles, dead
// rows, poison, empty sizes; between guard pages, twice on different workspaces.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Outcome;
using test::Forced;

const char* const kCases[] = {
    // Sizes round lanes, strips and tiles.
    "b1 hq1 sq1 skv1 d1",
    "b1 hq2 sq3 skv63 d3 lse",
    "b2 hq3 sq63 skv65 d63 lse",
    "b1 hq2 sq65 skv127 d65 lse",
    "b1 hq1 sq127 skv257 d127 lse",
    "b1 hq1 sq257 skv63 d257",
    "b2 hq2 sq65 skv64 d64 dv257 lse",
    "b3 hq6 hkv2 sq17 skv65 d576 dv512",
    "b1 hq8 hkv1 sq1 skv1025 d128 lse",
    "b1 hq1 sq33 skv1023 d8 lse",
    "b9 hq1 sq1 skv1 d16 lse",
    // Layouts.
    "b2 hq4 hkv2 sq65 skv65 d32 layout=bshd lse seed=3",
    "b2 hq4 hkv2 sq65 skv63 d33 layout=strided",
    "b2 hq4 sq63 skv63 d32 layout_q=bshd layout_k=strided layout_out=bshd seed=5",
    "b2 hq4 hkv4 sq65 skv65 d16 layout=bshd causal seed=9",
    "b2 hq2 sq33 skv65 d32 align_q=2 align_k=2 align_v=2 align_out=2 seed=4",
    // Diagonals and windows.
    "b2 hq2 sq65 skv65 d16 causal lse",
    "b2 hq2 sq65 skv127 d16 causal diag=br lse poison",
    "b2 hq2 sq127 skv65 d16 causal diag=br lse poison",
    "b2 hq2 sq127 skv65 d16 causal diag=tl lse poison",
    "b2 hq2 sq63 skv65 d16 causal diag=-17 lse",
    "b2 hq2 sq63 skv65 d16 causal diag=9223372036854775807 lse",
    "b2 hq2 sq63 skv65 d16 causal diag=-9223372036854775808 lse",
    "b4 hq2 sq63 skv65 d16 causal diag=seq lse poison seed=6",
    "b2 hq2 sq127 skv127 d16 window=0,0 lse poison",
    "b1 hq2 sq127 skv257 d8 window=64,0 diag=br lse",
    "b1 hq2 sq127 skv257 d8 window=-1,3 diag=br lse",
    "b1 hq2 sq257 skv127 d8 window=63,65 diag=tl",
    "b6 hq2 sq65 skv127 d8 lens causal window=31,0 diag=br lse poison seed=8",
    // Masks and biases, every broadcast of interest.
    "b2 hq2 sq65 skv127 d16 mask lse poison seed=1",
    "b2 hq2 sq65 skv127 d16 mask=1,1,1,Skv lse poison",
    "b2 hq3 sq33 skv65 d16 mask=B,1,Sq,1 lse seed=2",
    "b2 hq3 sq33 skv65 d16 mask=1,H,1,1 lse seed=3",
    "b2 hq2 sq65 skv127 d16 bias lse poison seed=1",
    "b2 hq2 sq65 skv65 d16 bias=1,H,Sq,Skv causal lse",
    "b2 hq2 sq33 skv65 d16 bias=B,1,1,Skv bias_dtype=f64 lse seed=4",
    "b2 hq2 sq33 skv65 d16 bias=1,1,Sq,1 data=finfo_min lse seed=5",
    "b2 hq2 sq33 skv65 d16 bias data=finfo_min lse poison seed=6",
    "b2 hq2 sq33 skv65 d16 mask=1,H,1,Skv bias=B,1,Sq,1 softcap=5 alibi sinks causal diag=br lse",
    // Other edits.
    "b2 hq4 hkv2 sq65 skv65 d16 alibi causal lse",
    "b2 hq8 sq33 skv65 d16 alibi diag=br lse",
    "b2 hq2 sq33 skv65 d16 softcap=1 lse data=large",
    "b2 hq4 sq33 skv65 d16 sinks lse seed=3",
    "b2 hq4 sq33 skv65 d16 sinks mask lse data=large seed=4",
    "b2 hq2 sq33 skv65 d16 scale=0 lse",
    "b2 hq2 sq33 skv65 d16 scale=-0.5 lse",
    // Lengths and segments.
    "b6 hq2 sq65 skv127 d16 lens lse poison seed=1",
    "b6 hq2 sq65 skv127 d16 lens=q sinks lse seed=2",
    "b3 hq2 sq65 skv127 d16 lens_kv=127,0,1 lse poison",
    "b3 hq2 sq65 skv65 d16 lens_q=0,65,1 lse",
    "b3 hq2 sq65 skv127 d16 segments lse poison seed=3",
    "b6 hq4 hkv2 sq65 skv65 d16 segments lens causal diag=tl lse poison seed=4",
    // Dropout.
    "b2 hq2 sq33 skv127 d16 dropout=0.25 lse",
    "b2 hq4 hkv2 sq65 skv65 d16 dropout=0.5 causal lse",
    "b2 hq2 sq33 skv65 d16 dropout=0.9 causal diag=7 mask bias lse poison",
    // Data.
    "b2 hq2 sq33 skv127 d64 data=large lse",
    "b2 hq6 sq33 skv127 d64 data=outlier lse",
    "b2 hq2 sq33 skv127 d64 data=constant lse",
    // Scales and caps beyond f32's range.
    "b1 hq2 hkv1 sq9 skv130 d8 scale=1e-46 lse",
    "b1 hq2 hkv1 sq9 skv130 d8 scale=-1e-46 causal diag=br lse",
    "b1 hq2 hkv1 sq9 skv130 d8 softcap=1e39 lse",
    "b1 hq2 hkv1 sq9 skv130 d8 softcap=1e-46 scale=0 lse",
    // Empty sizes.
    "b0 hq2 sq3 skv5 d16 lse",
    "b2 hq0 hkv0 sq3 skv5 d16 lse",
    "b2 hq2 sq0 skv5 d16 lse causal diag=br",
    "b2 hq2 sq5 skv0 d16 lse",
    "b2 hq2 sq5 skv0 d16 lse sinks mask bias dropout=0.5",
    "b2 hq2 sq0 skv0 d16 lens segments lse",
    // MATH's debugging output.
    "b2 hq4 hkv2 sq33 skv65 d16 scores=scaled causal diag=br poison",
    "b2 hq2 sq33 skv65 d16 scores=edited softcap=5 bias mask alibi diag=tl poison",
    "b2 hq2 sq33 skv65 d16 scores=probs sinks lens dropout=0.5 poison",
};

class Cases : public testing::TestWithParam<std::tuple<Forced, const char*>> {};

TEST_P(Cases, PassInEveryDtype) {
  const auto& [forced, text] = GetParam();
  const std::unique_ptr<Context> context = test::make_context(forced.isa);
  const bool is_math = forced.backend == test::kMathRef;
  int round = 0;
  for (const char* dtype : {"f32", "bf16", "f16", "f64", "bf16 out=f32"}) {
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

INSTANTIATE_TEST_SUITE_P(All, Cases,
                         testing::Combine(testing::ValuesIn(test::forced_backends()),
                                          testing::ValuesIn(kCases)),
                         [](const auto& param) {
                           std::string name = test::name_of(std::get<0>(param.param)) + "_";
                           for (const char* c = std::get<1>(param.param); *c != 0; ++c) {
                             name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace regard

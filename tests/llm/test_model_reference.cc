#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/llm/tiny_model.h"

// Models in f32 against the same sums in double precision.

namespace llm {
namespace {

using test::TinyModel;
using test::TinySpec;

constexpr double kBound = 2e-5;  // of the largest logit

struct Variant {
  const char* name;
  TinySpec spec;
};

std::vector<Variant> variants() {
  return {
      {"EveryHeadItsKeys", {.heads = 4, .heads_kv = 4}},
      {"GroupsOfTwo", {.heads = 4, .heads_kv = 2}},
      {"OneHeadOfKeys", {.width = 48, .heads = 6, .heads_kv = 1}},
      {"OneHead", {.layers = 1, .width = 16, .heads = 1, .heads_kv = 1}},
      {"GroupsOfThree", {.layers = 3, .width = 72, .ffn_width = 100, .heads = 9, .heads_kv = 3}},
      {"OwnOutput", {.tied = false}},
      {"HeadDim24", {.width = 72, .ffn_width = 33, .heads = 3, .heads_kv = 3}},
      {"HeadsWiderThanTokens", {.width = 20, .heads = 3, .heads_kv = 1, .head_dim = 24}},
      {"HeadsNarrowerThanTokens", {.width = 50, .heads = 5, .heads_kv = 5, .head_dim = 6}},
      {"OddWidths",
       {.width = 37,
        .ffn_width = 41,
        .heads = 2,
        .heads_kv = 1,
        .head_dim = 10,
        .vocab = 101,
        .tied = false}},
      {"RotaryScaleOfEachFrequency", {.rope_freqs = true}},
      {"LinearScaling", {.position_scale = 4.0}},
      {"BothScalings", {.rope_freqs = true, .position_scale = 2.5}},
      {"PartOfAHeadRotates", {.width = 64, .rotary_dim = 10}},
      {"PartWithScales", {.width = 64, .rotary_dim = 8, .rope_freqs = true}},
      {"AnotherBase", {.rotary_base = 500000.0f, .epsilon = 1e-2f}},
  };
}

class Reference : public ::testing::TestWithParam<Variant> {};

TEST_P(Reference, LogitsAreThoseOfDoublePrecision) {
  const TinySpec& spec = GetParam().spec;
  TinyModel tiny(spec);
  // Few rows go through a product of our own, many through oneDNN.
  for (const std::int64_t count : {1, 2, 13, 40}) {
    const auto tokens = test::random_tokens(count, spec.vocab, 5);
    const double error =
        test::relative_error(tiny.logits(tokens), test::reference_logits(spec, tokens));
    EXPECT_LT(error, kBound) << count << " tokens";
  }
}

TEST_P(Reference, AnyRowsOfAStepHaveLogits) {
  const TinySpec& spec = GetParam().spec;
  TinyModel tiny(spec);
  const auto tokens = test::random_tokens(21, spec.vocab, 6);
  const std::int32_t sequence = tiny.cache().add();
  tiny.append(sequence, tokens);
  const auto expected = test::reference_logits(spec, tokens);
  const auto vocab = spec.vocab;
  for (const auto& [first, rows] :
       {std::pair<std::int64_t, std::int64_t>{20, 1}, {3, 2}, {0, 21}}) {
    const std::vector<double> part(expected.begin() + first * vocab,
                                   expected.begin() + (first + rows) * vocab);
    EXPECT_LT(test::relative_error(tiny.model().logits(first, rows), part), kBound) << first;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Reference, ::testing::ValuesIn(variants()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(ReferenceOfOtherTypes, MatricesAreDequantised) {
  for (const GgmlType type : {GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_1}) {
    TinySpec spec{.width = 64, .ffn_width = 96};
    spec.type = type;
    TinyModel tiny(spec);
    const auto tokens = test::random_tokens(9, spec.vocab, 7);
    const double error =
        test::relative_error(tiny.logits(tokens), test::reference_logits(spec, tokens));
    EXPECT_LT(error, kBound) << to_string(type);
  }
}

}  // namespace
}  // namespace llm

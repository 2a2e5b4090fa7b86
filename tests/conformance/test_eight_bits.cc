#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "conformance/run.h"
#include "tests/support/all_units.h"

// Floats of 8 bits on every unit of every backend: both formats, every type of out, the way of many
// rows and that of few, NaN behind masks.

namespace regard {
namespace {

using test::Forced;

struct EightBitCase {
  const char* name;
  const char* text;
};

class EightBits : public testing::TestWithParam<EightBitCase> {};

TEST_P(EightBits, PassOnEveryUnit) {
  test::AllUnits& units = test::AllUnits::instance();
  EXPECT_EQ(units.run(parse_case(GetParam().text).value(), {}), units.count());
}

const EightBitCase kEightBitCases[] = {
    {"causal", "b2 hq4 hkv2 sq33 skv65 d32 f8e4m3 causal diag=br descales=head lse poison"},
    {"window", "b2 hq2 sq65 skv127 d33 f8e5m2 window=16,0 diag=br descales lse poison"},
    {"out_f32", "b2 hq2 sq33 skv65 d24 f8e5m2 out=f32 mask lens descales=head lse poison"},
    {"out_f16", "b2 hq8 hkv2 sq17 skv65 d64 f8e4m3 out=f16 layout=bshd sinks descales lse"},
    {"out_f8e4m3", "b1 hq2 sq33 skv65 d16 f8e4m3 out=f8e4m3 bias alibi diag=tl descales=head lse"},
    {"out_f8e5m2", "b1 hq2 sq33 skv65 d17 f8e5m2 out=f8e5m2 softcap=3 dropout=0.2 saved"},
    {"one_row", "b3 hq8 hkv2 sq1 skv700 d72 f8e4m3 lens descales=head lse poison"},
    {"few_rows", "b2 hq4 hkv2 sq5 skv600 d40 f8e5m2 causal diag=br descales lse poison"},
    {"scales", "b2 hq4 hkv2 sq1 skv300 d96 bf16 kv=i8 v=f8e4m3 scales=token lens=kv lse"},
    {"f8", "b2 hq8 hkv2 sq1 skv640 d128 bf16 kv=f8e4m3 scales=token lens=kv lse"},
    {"f8_out_f32", "b2 hq8 hkv2 sq1 skv640 d128 bf16 kv=f8e5m2 out=f32 scales=token"},
    {"f8_beside_bf16", "b2 hq4 hkv2 sq2 skv300 d64 bf16 v=f8e5m2 scales=token lens=kv lse"},
    {"f8_paged",
     "b2 hq8 hkv2 sq2 skv1008 d128 bf16 kv=f8e5m2 scales=token paged page_size=16 lens=kv"},
    {"i8_paged",
     "b2 hq8 hkv2 sq1 skv1008 d128 bf16 kv=i8 scales=token paged page_size=48 lens=kv lse"},
    {"u4_paged", "b2 hq8 hkv2 sq1 skv1008 d128 bf16 kv=u4 paged page_size=16 lens=kv"},
    {"u4", "b2 hq8 hkv2 sq1 skv300 d128 bf16 kv=u4 lens=kv lse"},
    {"u4_parts", "b2 hq4 hkv2 sq5 skv70 d34 dv42 f32 kv=u4 layout=strided causal diag=br lse"},
    {"u4_prompt", "b1 hq4 hkv2 sq65 skv127 d64 f16 kv=u4 v=i8 window=30,0 diag=br lse"},
    {"hadamard", "b2 hq4 hkv2 sq3 skv70 d64 bf16 kv=u4 append=3 lens=kv rotary=32 hadamard lse"},
    // New rows are quantised in scratch that few rows of q and out need little of.
    {"append_wide", "sq1 skv64 d512 dv64 f32 kv=i8 append rotary=512"},
    {"append_wide_u4", "sq1 skv64 d512 dv32 f32 kv=u4 append hadamard"},
    {"append_wide_f8", "sq1 skv64 d512 dv8 f16 kv=f8e4m3 scales=token append hadamard"},
    {"append_no_queries", "sq0 skv64 d512 dv8 f32 append hadamard"},
    {"amax_few_rows", "b2 hq8 hkv2 sq1 skv700 d72 f8e4m3 lens descales=head amax poison"},
    {"amax_splits", "b1 hq8 hkv2 sq3 skv5000 d40 f16 amax"},
    {"amax_packed", "b3 hq4 hkv2 sq40 skv40 d17 bf16 packed causal diag=tl dropout=0.2 amax"},
    {"amax_out_f8", "b2 hq2 sq65 skv127 d33 f8e5m2 out=f8e5m2 data=large descales amax"},
    {"amax_grad", "b2 hq2 sq33 skv65 d20 f8e4m3 out=f8e4m3 descales amax saved grad"},
    {"scales_1x32", "b2 hq4 hkv2 sq33 skv65 d72 f8e4m3 scales=1x32 scales_q causal diag=br lse"},
    {"scales_1x128", "b2 hq4 hkv2 sq5 skv700 d160 f8e5m2 scales=1x128 scales_q lens lse poison"},
    {"scales_128x128",
     "b2 hq4 hkv2 sq140 skv300 d144 f8e4m3 scales=128x128 scales_q descales=head lse"},
    {"scales_decode", "b3 hq8 hkv2 sq1 skv300 d96 f8e4m3 scales=1x32 scales_q lens=kv lse"},
    {"scales_decode_blocks", "b2 hq8 hkv2 sq2 skv5000 d128 bf16 kv=f8e4m3 scales=128x128 lse"},
    {"scales_paged",
     "b2 hq8 hkv2 sq1 skv320 d128 bf16 kv=f8e4m3 paged page_size=16 scales=1x32 lens=kv lse"},
    {"scales_packed",
     "b3 hq4 hkv2 sq150 skv150 d40 f8e4m3 packed scales=128x128 scales_q causal diag=tl "
     "future_scales lse"},
    {"scales_leftpad",
     "b2 hq4 hkv2 sq3 skv300 d64 bf16 kv=i8 v=f8e5m2 scales=128x128 cache_leftpad lse"},
    {"scales_of_q", "b2 hq4 hkv2 sq40 skv65 d33 f8e5m2 scales_q descales lse"},
    {"large", "b1 hq2 sq33 skv65 d16 f8e4m3 data=large lse"},
    {"gradients",
     "b2 hq4 hkv2 sq33 skv65 d32 f8e4m3 d_out=f8e5m2 gradients=f8e5m2 descales=head "
     "causal diag=br saved grad poison"},
    {"gradients_out_f8",
     "b2 hq2 sq65 skv200 d20 f8e5m2 out=f8e5m2 d_out=f16 gradients=f32 descales "
     "softcap=3 lse grad d_lse"},
    // Rows of no sequence, which has no descale either.
    {"gradients_of_no_sequence",
     "b0 hq4 hkv2 sq8 d16 f8e4m3 packed total_q=5 total_kv=5 descales=head lse grad delta seed=38"},
    {"gradients_packed",
     "b3 hq4 hkv2 sq40 skv40 d16 f8e4m3 gradients=f8e4m3 packed descales=head "
     "causal diag=tl dropout=0.2 saved grad"},
    {"gradients_1x32",
     "b2 hq4 hkv2 sq33 skv65 d72 f8e4m3 d_out=f8e5m2 gradients=bf16 scales=1x32 scales_q causal "
     "diag=br saved grad poison"},
    {"gradients_1x128",
     "b1 hq4 hkv2 sq40 skv140 d160 f8e5m2 d_out=f8e5m2 gradients=f32 scales=1x128 scales_q "
     "descales=head lens saved grad delta"},
    {"gradients_128x128",
     "b2 hq2 sq140 skv300 d20 f8e4m3 out=f8e4m3 d_out=f8e4m3 gradients=f8e5m2 scales=128x128 "
     "scales_q sinks dropout=0.2 saved grad"},
    {"gradients_scales_packed",
     "b3 hq4 hkv2 sq150 skv150 d40 f8e4m3 d_out=f8e5m2 gradients=f16 packed scales=128x128 "
     "scales_q "
     "causal diag=tl future_scales saved grad"},
    // dS and its products are below the normal numbers.
    {"gradients_denormal",
     "b3 hq8 hkv4 sq1 skv69 d1 f32 descales=all causal diag=33 lens=kv segments saved grad "
     "layout_k=bshd data=denormal poison seed=8435257"},
    {"gradients_scales_of_rows",
     "b2 hq4 hkv2 sq40 skv65 d33 f8e5m2 d_out=f8e4m3 gradients=bf16 scales=token scales_q sinks "
     "bias lse grad d_lse"},
    {"gradients_scales_of_k",
     "b2 hq4 hkv2 sq40 skv65 d33 f8e5m2 d_out=bf16 gradients=bf16 scales=all saved grad"},
    {"probs",
     "b2 hq4 hkv2 sq33 skv65 d32 f8e4m3 quantized_probs causal diag=br descales=head lse poison"},
    {"probs_window",
     "b2 hq2 sq65 skv200 d33 f8e5m2 quantized_probs window=16,0 diag=br out=f32 saved"},
    {"probs_decode", "b2 hq8 hkv2 sq1 skv5000 d64 f8e4m3 quantized_probs lens=kv sinks lse"},
    {"probs_dropout",
     "b2 hq2 sq40 skv300 d20 f8e4m3 quantized_probs out=f8e4m3 dropout=0.2 bias amax"},
    {"probs_gradients",
     "b2 hq4 hkv2 sq33 skv65 d32 f8e4m3 d_out=f8e5m2 gradients=bf16 quantized_probs causal diag=br "
     "saved grad poison"},
    {"probs_gradients_lse",
     "b2 hq2 sq65 skv200 d20 f8e5m2 d_out=f8e4m3 gradients=f32 quantized_probs softcap=3 sinks lse "
     "grad d_lse"},
    {"probs_gradients_wide",
     "b2 hq4 hkv2 sq40 skv140 d33 f8e4m3 d_out=f32 gradients=f32 quantized_probs bias dropout=0.2 "
     "saved grad"},
    {"gradients_bf16", "b2 hq4 hkv2 sq33 skv65 d64 bf16 descales=head saved grad delta"},
    {"strided", "b2 hq3 sq33 skv65 d20 f8e4m3 layout=strided align=1 segments descales lse poison"},
};

INSTANTIATE_TEST_SUITE_P(All, EightBits, testing::ValuesIn(kEightBitCases),
                         [](const auto& param) { return param.param.name; });

// A sum of 8-bit values beyond their range: the output is held to it, and NaN stays NaN.
TEST(EightBitOutputs, SaturateAndKeepNan) {
  std::uint8_t q[2] = {}, out[2] = {};
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    const bool e4m3 = dtype == Dtype::kF8E4M3;
    std::uint8_t v[2] = {0x40, 0x7f};  // 2, and NaN
    float descale = 1e6f;
    AttentionRequest r;
    r.q = make_view(q, dtype, {1, 1, 1, 2});
    r.k = make_view(q, dtype, {1, 1, 1, 2});
    r.v = make_view(v, dtype, {1, 1, 1, 2});
    r.out = make_view(out, dtype, {1, 1, 1, 2});
    r.descale_v = make_view(&descale, Dtype::kF32, {1});
    for (const Forced& forced : test::forced_backends()) {
      test::run_forced(*test::make_context(forced.isa), r, forced);
      EXPECT_EQ(out[0], e4m3 ? 0x7e : 0x7b) << test::name_of(forced);
      EXPECT_EQ(out[1] & 0x7f, e4m3 ? 0x7f : 0x7e) << test::name_of(forced);
    }
  }
}

// d_out, and d_q, d_k and d_v, may have any of five types.
TEST(EightBitGradients, HaveAnyTypesOnEveryBackend) {
  Context context;
  for (const char* q : {"f8e4m3", "f8e5m2"}) {
    for (const char* d_out : {"f8e4m3", "f8e5m2", "bf16", "f16", "f32"}) {
      for (const char* gradients : {"f8e4m3", "f8e5m2", "bf16", "f16", "f32"}) {
        const std::string text = std::string("b2 hq4 hkv2 sq17 skv33 d16 ") + q +
                                 " d_out=" + d_out + " gradients=" + gradients +
                                 " descales=head causal diag=br saved grad";
        const Case c = parse_case(text).value();
        for (const BackendId id : {BackendId::kFlash, BackendId::kEfficient, BackendId::kMath}) {
          const conformance::Report report = conformance::run_case(context, c, {id, ""});
          EXPECT_EQ(report.outcome, conformance::Outcome::kPassed) << report.text;
        }
      }
    }
  }
}

TEST(EightBitGradients, TypesThatNoBackwardHasAreRefused) {
  for (const char* word : {"d_out=f64", "gradients=i8"}) {
    const Expected<Case> c = parse_case(std::string("sq8 d16 f8e4m3 saved grad ") + word);
    ASSERT_FALSE(c.ok() && validate(c->params, "plan").ok()) << word;
  }
}

TEST(EightBitGradients, ExplainCallsThemEmulation) {
  Context context;
  const Case f8 = parse_case("sq8 d16 f8e4m3 saved grad").value(),
             f32 = parse_case("sq8 d16").value();
  EXPECT_NE(to_string(explain(context, f8.params)).find("emulation"), std::string::npos);
  EXPECT_EQ(to_string(explain(context, f32.params)).find("emulation"), std::string::npos);
}

}  // namespace
}  // namespace regard

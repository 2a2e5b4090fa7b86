#include <gtest/gtest.h>

#include "conformance/run.h"

// Errors planted in the oracle: conformance must notice each on a case that has the feature, and
// pass the same case without it. (A wrong oracle against a right backend is a wrong backend against
// a right oracle.)

namespace regard {
namespace {

using conformance::Outcome;
using oracle::Fault;

struct Planted {
  const char* name;
  Fault fault;
  const char* text;  // a case
};

const Planted kPlanted[] = {
    {"diagonal_off_by_one", Fault::kDiagonalOffByOne, "b2 hq2 sq33 skv65 d32 causal diag=br"},
    {"window_exclusive", Fault::kWindowExclusive, "b1 hq2 sq65 skv65 d16 causal window=16,0"},
    {"softcap_after_bias", Fault::kSoftcapAfterBias, "b2 hq2 sq17 skv33 d16 softcap=5 bias"},
    {"sink_ignored", Fault::kSinkIgnored, "b2 hq4 sq17 skv33 d16 sinks"},
    {"neighbour_head", Fault::kNeighbourHead, "b1 hq8 hkv4 sq17 skv33 d16 layout=bshd"},
    {"dead_row_mean", Fault::kDeadRowMean, "b1 hq2 sq65 skv33 d16 causal diag=br"},
    {"lse_base_2", Fault::kLseBase2, "b1 hq2 sq17 skv33 d16 lse"},
    {"dropout_not_scaled", Fault::kDropoutNotScaled, "b1 hq2 sq17 skv33 d16 dropout=0.25"},
    {"amax_signed", Fault::kAmaxSigned, "b1 hq1 sq5 skv9 d8 amax seed=1"},
    {"descale_ignored", Fault::kDescaleIgnored, "b2 hq4 hkv2 sq17 skv33 d16 descales=head"},
    {"scales_ignored", Fault::kScalesIgnored, "b2 hq4 hkv2 sq17 skv33 d16 scales=token"},
    {"block_scales_ignored", Fault::kScalesIgnored, "b2 hq4 hkv2 sq17 skv33 d72 scales=1x32"},
    {"tree_ignored", Fault::kTreeIgnored, "b2 hq4 hkv2 sq17 skv33 d16 tree=20"},
    {"function_ignored", Fault::kFunctionIgnored, "b2 hq2 sq17 skv33 d16 score=score*0.7+r0[h]*b"},
    {"callback_ignored", Fault::kFunctionIgnored, "b2 hq2 sq17 skv33 d16 callback"},
    {"function_after_bias", Fault::kFunctionAfterBias,
     "b2 hq2 sq17 skv33 d16 bias score=tanh(score)"},
    {"mask_function_ignored", Fault::kMaskFunctionIgnored,
     "b2 hq2 sq33 skv33 d16 mask=(q_idx+kv_idx)%3!=0"},
    {"query_position_unshifted", Fault::kQueryPositionUnshifted,
     "b2 hq2 sq17 skv33 d16 diag=br score=score-0.05*abs(q_pos-kv_idx)"},
    {"function_slope_ignored", Fault::kFunctionSlopeIgnored,
     "b2 hq2 sq17 skv33 d16 score=score*score*0.5 saved grad"},
    {"captured_grad_not_summed", Fault::kCapturedGradNotSummed,
     "b2 hq2 sq17 skv33 d16 score=score+r0[kv_idx%5] saved grad"},
    {"delta_dropped", Fault::kDeltaDropped, "b2 hq2 sq17 skv33 d16 saved grad"},
    {"key_grad_not_scaled", Fault::kKeyGradNotScaled, "b1 hq2 sq17 skv33 d16 saved grad"},
    {"group_not_summed", Fault::kGroupNotSummed, "b1 hq4 hkv2 sq17 skv33 d16 saved grad"},
    {"grad_dropout_not_scaled", Fault::kGradDropoutNotScaled,
     "b1 hq2 sq17 skv33 d16 dropout=0.25 saved grad"},
    {"softcap_slope_missing", Fault::kSoftcapSlopeMissing,
     "b1 hq2 sq17 skv33 d16 softcap=5 saved grad"},
    {"bias_grad_not_reduced", Fault::kBiasGradNotReduced,
     "b2 hq2 sq17 skv33 d16 bias=1,H,1,Skv saved grad"},
    {"grad_descale_ignored", Fault::kGradDescaleIgnored,
     "b2 hq4 hkv2 sq17 skv33 d16 descales=head saved grad"},
    {"lse_grad_ignored", Fault::kLseGradIgnored, "b1 hq2 sq17 skv33 d16 d_lse saved grad seed=7"},
};

class PlantedFaults : public testing::TestWithParam<Planted> {};

TEST_P(PlantedFaults, AreNoticedInEveryDtype) {
  Context context;
  for (const char* dtype : {"f32", "f64", "bf16", "f16", "f8e4m3", "f8e5m2"}) {
    const std::string text = std::string(GetParam().text) + " " + dtype;
    if (text.ends_with("callback f64")) continue;  // it is given f32
    const Case c = parse_case(text).value();
    const bool has_scales = c.params.features.has(Feature::kScales);  // types of 8 bits alone
    if (GetParam().fault == Fault::kScalesIgnored && !has_scales) continue;
    const BackendRef math{BackendId::kMath};
    const conformance::Report right = conformance::run_case(context, c, math);
    EXPECT_EQ(right.outcome, Outcome::kPassed) << right.text;
    Expected<conformance::PreparedCase> wrong =
        conformance::prepare(c, conformance::Guard::kCanaries, GetParam().fault);
    ASSERT_TRUE(wrong.ok()) << wrong.status().to_string();
    const conformance::Report report = conformance::run_prepared(context, &*wrong, math);
    EXPECT_EQ(report.outcome, Outcome::kFailed) << to_string(c);
    EXPECT_NE(report.text.find("expected"), std::string::npos) << report.text;
    EXPECT_NE(report.text.find(to_string(c)), std::string::npos) << report.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Oracle, PlantedFaults, testing::ValuesIn(kPlanted),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace regard

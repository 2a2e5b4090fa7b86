#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "oracle/gradients.h"
#include "oracle/number.h"
#include "oracle/rules.h"

// The analytic gradients against central differences of the forward's truth, in long double.

namespace regard {
namespace {

using conformance::make_problem;
using conformance::Problem;
using oracle::Fault;
using oracle::Gradient;
using oracle::GradTruth;

// Steps that the types hold exactly beside numbers of some units: f64, and f32 for sinks.
constexpr double kStep = 0x1p-16, kSinkStep = 0x1p-11;

/// sum(out * d_out) + sum(lse * d_lse): rows without weight have a constant lse, -inf.
long double loss(const AttentionGradRequest& r) {
  const oracle::Truth truth = oracle::compute(r).value();
  const std::int64_t* q = r.q.shape;
  long double sum = 0;
  std::size_t row = 0, n = 0;
  for (std::int64_t b = 0; b < q[0]; ++b) {
    for (std::int64_t h = 0; h < q[1]; ++h) {
      for (std::int64_t i = 0; i < q[2]; ++i, ++row) {
        for (std::int64_t d = 0; d < r.v.shape[3]; ++d) {
          sum += truth.out[n++] * oracle::element(r.d_out, b, h, i, d);
        }
        if (!r.d_lse.present() || !std::isfinite(truth.lse[row])) continue;
        sum += truth.lse[row] * oracle::element(r.d_lse, b, h, i);
      }
    }
  }
  return sum;
}

/// d loss / d element by a step up and a step down.
double slope_at(const AttentionGradRequest& r, unsigned char* element, Dtype dtype, double step) {
  const double x = oracle::decode(element, dtype);
  if (!std::isfinite(x)) return 0.0;  // a bias of -inf is a mask, a sink of -inf none
  oracle::encode(x + step, element, dtype);
  const double above = oracle::decode(element, dtype);
  const long double up = loss(r);
  oracle::encode(x - step, element, dtype);
  const double below = oracle::decode(element, dtype);
  const long double down = loss(r);
  oracle::encode(x, element, dtype);
  return static_cast<double>((up - down) / (static_cast<long double>(above) - below));
}

/// "" where `gradient` is that of `view` within 1e-6 of its largest element.
std::string difference(const AttentionGradRequest& r, const TensorView& view,
                       const Gradient& gradient, double step) {
  long double largest = 0;
  for (const long double g : gradient.exact) largest = std::max(largest, std::fabs(g));
  std::string text;
  std::size_t n = 0;
  conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
    const long double analytic = gradient.exact.at(n++);
    if (!text.empty()) return;
    const double central = slope_at(r, element, view.dtype, step);
    if (std::fabs(analytic - central) <= 1e-6L * largest + 1e-10L) return;
    text = "element " + std::to_string(n - 1) + " of " + to_string(view) + ": central " +
           std::to_string(central) + ", analytic " + std::to_string(static_cast<double>(analytic));
  });
  EXPECT_EQ(n, gradient.exact.size());
  return text;
}

/// The tensors whose gradient is not that of central differences.
std::string wrong_gradients(const AttentionGradRequest& r, const GradTruth& truth) {
  std::string wrong;
  const auto add = [&](const char* name, const TensorView& view, const Gradient& g, double step) {
    if (!view.present()) return;
    const std::string text = difference(r, view, g, step);
    if (!text.empty()) wrong += std::string(name) + " (" + text + ") ";
  };
  add("d_q", r.q, truth.d_q, kStep);
  add("d_k", r.k, truth.d_k, kStep);
  add("d_v", r.v, truth.d_v, kStep);
  add("d_bias", r.attn_bias, truth.d_bias, kStep);
  add("d_sinks", r.sinks, truth.d_sinks, kSinkStep);
  for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
    if (truth.d_captured[slot].exact.empty()) continue;  // of ints, or of a mask alone
    const std::string name = "d_captured" + std::to_string(slot);
    add(name.c_str(), r.*oracle::kCaptured[slot], truth.d_captured[slot], kStep);
  }
  return wrong;
}

/// The case's problem in f64, with a d_lse whatever the seed says.
class GradProblem {
 public:
  explicit GradProblem(const std::string& text)
      : problem(make_problem(parse_case(text + " f64 grad").value(),
                             {conformance::Guard::kCanaries, true})),
        request(problem.request()) {
    const std::int64_t *q = request.q.shape, rows = q[0] * q[1] * q[2];
    for (std::int64_t n = 0; n < rows; ++n)
      d_lse_.push_back(0.25 * static_cast<double>(n % 7) - 0.6);
    request.d_lse = make_view(d_lse_.data(), Dtype::kF64, {q[0], q[1], q[2]});
    for (TensorView Buffers::*captured : oracle::kCaptured) widen(&(request.*captured));
    if (!request.sinks.present()) return;
    conformance::for_each_element(request.sinks, [](const auto&, unsigned char* element) {
      const double sink = oracle::decode(element, Dtype::kF32);
      if (std::isfinite(sink)) oracle::encode(std::round(64 * sink) / 64, element, Dtype::kF32);
    });
  }
  Problem problem;
  AttentionGradRequest request;

 private:
  /// Real numbers of captured tensors in f64, which steps are taken of.
  void widen(TensorView* view) {
    if (!view->present() || !is_float(view->dtype)) return;
    std::vector<double>& numbers = captured_.emplace_back();
    conformance::for_each_element(*view, [&](const auto&, unsigned char* element) {
      numbers.push_back(oracle::decode(element, view->dtype));
    });
    view->dtype = Dtype::kF64;
    view->data = numbers.data();
    std::int64_t stride = 1;
    for (int dim = view->rank - 1; dim >= 0; --dim) {
      view->strides[dim] = stride;
      stride *= view->shape[dim];
    }
  }

  std::vector<double> d_lse_;
  std::list<std::vector<double>> captured_;
};

const char* const kCases[] = {
    "b1 hq1 sq3 skv4 d3",
    "b2 hq2 sq3 skv5 d3 dv2 seed=1",
    "b2 hq4 hkv2 sq3 skv4 d2 dv3 seed=2",
    "b1 hq3 hkv1 sq4 skv4 d2 causal seed=3",
    "b2 hq2 sq3 skv5 d2 causal diag=br seed=4",
    "b2 hq2 sq5 skv3 d2 causal diag=br seed=5",
    "b1 hq2 sq4 skv6 d2 window=1,1 diag=1 seed=6",
    "b3 hq1 sq3 skv4 d2 causal diag=seq seed=7",
    "b2 hq2 sq4 skv5 d2 mask seed=8",
    "b2 hq2 sq4 skv5 d2 mask=1,H,Sq,1 causal diag=tl seed=9",
    "b2 hq2 sq3 skv4 d2 bias bias_dtype=f64 seed=10",
    "b2 hq2 sq3 skv4 d2 bias=1,1,Sq,Skv bias_dtype=f64 seed=11",
    "b2 hq2 sq3 skv4 d2 bias=B,1,1,Skv bias_dtype=f64 softcap=1 seed=12",
    "b2 hq2 sq3 skv4 d2 bias=1,H,1,1 bias_dtype=f64 causal diag=tl seed=13",
    "b5 hq1 sq3 skv4 d2 lens seed=14",
    "b3 hq2 sq4 skv4 d2 lens_q=4,1,0 lens_kv=2,0,4 causal diag=br sinks seed=15",
    "b1 hq2 sq4 skv5 d2 alibi diag=br seed=16",
    "b1 hq2 sq4 skv5 d2 softcap=1 scale=1.5 seed=17",
    "b1 hq2 sq4 skv5 d2 softcap=5 alibi diag=tl sinks seed=18",
    "b2 hq4 hkv2 sq3 skv4 d2 sinks seed=19",
    "b1 hq4 sq4 skv3 d2 sinks causal diag=br seed=20",
    "b2 hq2 sq5 skv5 d2 segments seed=21",
    "b2 hq2 sq4 skv6 d2 dropout=0.25 seed=22",
    "b2 hq4 hkv2 sq4 skv6 d2 dropout=0.5 causal diag=br sinks bias bias_dtype=f64 seed=23",
    "b1 hq2 sq3 skv4 d2 scale=-0.7 seed=24",
    "b1 hq2 sq3 skv4 d2 scale=0 bias bias_dtype=f64 seed=25",
    "b1 hq2 sq3 skv4 d2 data=constant seed=26",
    "b1 hq2 sq3 skv4 d2 window=0,0 diag=tl seed=27",
    "b1 hq1 sq2 skv0 d2 sinks seed=28",
    "b0 hq2 sq3 skv4 d2 seed=29",
    "b2 hq2 sq0 skv4 d2 seed=30",
    "b2 hq2 sq3 skv4 d2 score=score*score*0.3 seed=31",
    "b2 hq2 sq3 skv4 d2 score=1.5*tanh(score)-0.2*abs(q_idx-kv_idx) seed=32",
    "b2 hq4 hkv2 sq3 skv4 d2 score=score*r0[h]+r1[b,kv_idx] seed=33",
    "b2 hq2 sq4 skv5 d2 score=score+r3[h,max(min(q_idx-kv_idx,2),-2)+2] causal diag=tl seed=34",
    "b2 hq2 sq4 skv5 d2 score=r0[h]*r0[h]*score/(1.0+exp(r0[1])) softcap=2 seed=35",
    "b2 hq2 sq4 skv5 d2 score=where(score<0.0,score*r0[0],sqrt(score)*r0[1]) seed=36",
    "b2 hq2 sq4 skv5 d2 score=max(score,0.1)+min(score,r0[q_idx])*sigmoid(r1[kv_idx,h]) seed=37",
    "b2 hq2 sq4 skv5 d2 score=where((q_idx+kv_idx)%3==0,-inf,score*2.0) seed=38",
    "b2 hq2 sq4 skv5 d2 score=where(score<0.2,score,-inf) sinks seed=39",
    "b2 hq2 sq4 skv5 d2 score=score+r0[i1[kv_idx]] mask=(q_idx*kv_idx)%3!=1 seed=40",
    "b2 hq2 sq4 skv5 d2 score=score*r2[b] mask=r2[b]*r0[h,q_idx]<0.1 seed=41",
    "b3 hq2 sq4 skv6 d2 score=score-r0[0]*abs(q_pos-kv_idx) diag=br lens seed=42",
    "b2 hq2 sq4 skv5 d2 score=score+r0[kv_len-q_len,b]*q_len alibi diag=tl seed=43",
    ("b2 hq4 hkv2 sq4 skv6 d2 dropout=0.5 score=log(score*score+r0[0]*r0[0]) bias bias_dtype=f64 "
     "sinks seed=44"),
    "b2 hq2 sq4 skv5 d2 score=score+r0[kv_idx] seed=49",
    "b2 hq3 sq3 skv4 d2 score=q_idx-kv_idx seed=50",
};

class CentralDifferences : public testing::TestWithParam<const char*> {};

TEST_P(CentralDifferences, GiveTheAnalyticGradients) {
  const GradProblem p(GetParam());
  const Expected<GradTruth> truth = oracle::compute_gradients(p.request);
  ASSERT_TRUE(truth.ok()) << truth.status().to_string();
  EXPECT_EQ(wrong_gradients(p.request, *truth), "");
}

// The ideal pipeline of f64 is f64: the same sums a second time.
TEST_P(CentralDifferences, TheIdealIsNearTheTruth) {
  const GradProblem p(GetParam());
  const GradTruth truth = oracle::compute_gradients(p.request).value();
  std::vector<const Gradient*> all = {&truth.d_q, &truth.d_k, &truth.d_v, &truth.d_bias,
                                      &truth.d_sinks};
  for (const Gradient& g : truth.d_captured) all.push_back(&g);
  for (const Gradient* g : all) {
    for (std::size_t n = 0; n < g->exact.size(); ++n) {
      EXPECT_NEAR(g->ideal[n], static_cast<double>(g->exact[n]), 1e-13) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Oracle, CentralDifferences, testing::ValuesIn(kCases));

struct PlantedGrad {
  Fault fault;
  const char* text;
  const char* wrong;  // the gradients that must be, in order
};

class PlantedGradFaults : public testing::TestWithParam<PlantedGrad> {};

TEST_P(PlantedGradFaults, AreNoticed) {
  const GradProblem p(GetParam().text);
  const GradTruth truth = oracle::compute_gradients(p.request, GetParam().fault).value();
  const std::string wrong = wrong_gradients(p.request, truth);
  std::string names;
  for (const char* name : {"d_q", "d_k", "d_v", "d_bias", "d_sinks", "d_captured0"}) {
    if (wrong.find(std::string(name) + " (") != std::string::npos) names += std::string(name) + " ";
  }
  EXPECT_EQ(names, GetParam().wrong) << wrong;
}

INSTANTIATE_TEST_SUITE_P(
    Oracle, PlantedGradFaults,
    testing::Values(
        PlantedGrad{Fault::kDeltaDropped, "b1 hq2 sq3 skv4 d2 sinks", "d_q d_k d_sinks "},
        PlantedGrad{Fault::kKeyGradNotScaled, "b1 hq2 sq3 skv4 d2", "d_k "},
        PlantedGrad{Fault::kGroupNotSummed, "b1 hq4 hkv2 sq3 skv4 d2", "d_k d_v "},
        PlantedGrad{Fault::kGradDropoutNotScaled, "b1 hq2 sq3 skv4 d2 dropout=0.5", "d_q d_k d_v "},
        PlantedGrad{Fault::kSoftcapSlopeMissing, "b1 hq2 sq3 skv4 d2 softcap=1", "d_q d_k "},
        PlantedGrad{Fault::kBiasGradNotReduced, "b2 hq2 sq3 skv4 d2 bias=1,H,1,Skv bias_dtype=f64",
                    "d_bias "},
        PlantedGrad{Fault::kFunctionSlopeIgnored, "b1 hq2 sq3 skv4 d2 score=score*r0[h]*3.0",
                    "d_q d_k "},
        PlantedGrad{Fault::kCapturedGradNotSummed, "b2 hq3 sq3 skv4 d2 score=score*r0[q_idx]",
                    "d_captured0 "},
        PlantedGrad{Fault::kFunctionIgnored, "b2 hq3 sq3 skv4 d2 score=score*r0[q_idx]",
                    "d_q d_k d_v d_captured0 "},
        PlantedGrad{Fault::kMaskFunctionIgnored, "b2 hq3 sq3 skv4 d2 mask=(q_idx+kv_idx)%3!=0",
                    "d_q d_k d_v "},
        PlantedGrad{Fault::kQueryPositionUnshifted,
                    "b2 hq3 sq3 skv5 d2 diag=br score=score-0.3*abs(q_pos-kv_idx)", "d_q d_k d_v "},
        PlantedGrad{Fault::kFunctionAfterBias,
                    "b1 hq2 sq3 skv4 d2 bias bias_dtype=f64 score=2.0*score",
                    "d_q d_k d_v d_bias "},
        PlantedGrad{Fault::kLseGradIgnored, "b1 hq2 sq3 skv4 d2", "d_q d_k "}));

/// A function's -inf hides a key as a mask does, whether the score decides or the place.
TEST(GradientsOfFunctions, MinusInfinityIsAMask) {
  const std::string base = "b2 hq2 sq4 skv5 d2 sinks seed=3";
  GradProblem masked(base + " mask=(q_idx+2*kv_idx)%3!=1"), edited(base);
  const GradTruth a = oracle::compute_gradients(masked.request).value();
  edited.request.options.score_function =
      Expression::parse("where((q_idx+2*kv_idx)%3!=1,score,-inf)").value();
  for (int n = 0; n < 2; ++n) {
    const GradTruth b = oracle::compute_gradients(edited.request).value();
    EXPECT_EQ(a.d_q.exact, b.d_q.exact);
    EXPECT_EQ(a.d_k.exact, b.d_k.exact);
    EXPECT_EQ(a.d_v.exact, b.d_v.exact);
    EXPECT_EQ(a.d_sinks.exact, b.d_sinks.exact);
    // As arithmetic: what is added to a score depends on no score.
    edited.request.options.score_function =
        Expression::parse("score+where((q_idx+2*kv_idx)%3!=1,0.0,-inf)").value();
  }
}

/// Rows whose roundings decide what they see are known to be such, and no others.
TEST(GradientsOfFunctions, RowsThatRoundingDecidesAreMarked) {
  Problem problem = make_problem(parse_case("b1 hq1 sq2 skv3 d2 f32 scale=1 saved grad").value(),
                                 {conformance::Guard::kCanaries, true});
  AttentionGradRequest r = problem.request();
  float q[4] = {1.0f, 1.0f / 3.0f, 0.0f, 1.0f}, k[6] = {1.0f, 3.0f, 0.0f, 0.0f, 0.5f, 0.25f};
  r.q = make_view(q, Dtype::kF32, {1, 1, 2, 2});
  r.k = make_view(k, Dtype::kF32, {1, 1, 3, 2});
  // The score of query 0 and key 0 is 2 but for roundings, that of query 1 is 3.
  r.options.score_function = Expression::parse("where(score<=2.0,-inf,score)").value();
  const oracle::Truth truth = oracle::compute(r).value();
  EXPECT_TRUE(truth.rows[0].undecided);
  EXPECT_FALSE(truth.rows[1].undecided);
  EXPECT_EQ(truth.rows[1].visible_keys, 1);
  const GradTruth gradients = oracle::compute_gradients(r).value();
  EXPECT_EQ(gradients.d_q.sizes[0].huge, HUGE_VAL);
  EXPECT_EQ(gradients.d_q.sizes[2].huge, 0.0);
  EXPECT_EQ(gradients.d_k.sizes[0].huge, HUGE_VAL);
}

TEST(GradientsOfFunctions, AreRefusedWhereTheyReadWhatIsNotThere) {
  GradProblem p("b1 hq2 sq3 skv4 d2 score=score+r0[kv_idx]");
  p.request.captured0.shape[0] = 3;
  for (int n = 0; n < 2; ++n) {
    EXPECT_FALSE(oracle::compute(p.request).ok());
    EXPECT_FALSE(oracle::compute_gradients(p.request).ok());
    p.request.captured0 = {};
  }
}

/// Where nothing reaches an element it is exactly 0, whatever lies there.
TEST(GradientsBehindMasks, AreZeroAndPoisonNeverShows) {
  const std::string text =
      "b3 hq4 hkv2 sq5 skv9 d3 causal diag=br lens_q=5,2,4 lens_kv=9,4,0 mask=1,1,1,Skv "
      "dropout=0.5 "
      "saved seed=3";
  GradProblem clean(text), poisoned(text + " poison");
  const GradTruth a = oracle::compute_gradients(clean.request).value();
  const GradTruth b = oracle::compute_gradients(poisoned.request).value();
  int zeros = 0;
  const Gradient* pairs[][2] = {{&a.d_q, &b.d_q}, {&a.d_k, &b.d_k}, {&a.d_v, &b.d_v}};
  for (const auto& [left, right] : pairs) {
    ASSERT_EQ(left->exact, right->exact);
    ASSERT_EQ(left->ideal, right->ideal);
    for (std::size_t n = 0; n < left->exact.size(); ++n) {
      if (right->sizes[n].terms != 0) continue;
      ++zeros;
      EXPECT_EQ(right->exact[n], 0.0L);
      EXPECT_EQ(right->ideal[n], 0.0);
    }
  }
  EXPECT_GT(zeros, 100);
}

// Every score finfo.min: the probabilities are 1 / n, and their gradients those of equal scores.
TEST(GradientsOfHugeBiases, AreThoseOfEqualScores) {
  GradProblem p("b1 hq1 sq2 skv4 d3 bias=1,1,1,1 bias_dtype=f64 saved");
  const double lowest = -1.7976931348623157e308;
  oracle::encode(lowest, p.request.attn_bias.data, Dtype::kF64);
  const GradTruth huge = oracle::compute_gradients(p.request).value();
  oracle::encode(0.0, p.request.attn_bias.data, Dtype::kF64);
  p.request.options.softmax_scale = 0.0;
  const GradTruth equal = oracle::compute_gradients(p.request).value();
  EXPECT_EQ(huge.d_v.exact, equal.d_v.exact);
  EXPECT_NE(huge.d_q.exact, equal.d_q.exact);  // softmax_scale is 0 there
  EXPECT_EQ(huge.d_q.sizes[0].huge, 0.0);      // judged as any other row
}

TEST(Gradients, RefuseAnUpstreamThatDoesNotFit) {
  GradProblem p("b1 hq1 sq2 skv4 d3");
  p.request.d_out.shape[3] += 1;
  const Expected<GradTruth> truth = oracle::compute_gradients(p.request);
  ASSERT_FALSE(truth.ok());
  EXPECT_NE(truth.status().message().find("shape of d_out (f64[1,1,2,4]"), std::string::npos)
      << truth.status().message();
}

}  // namespace
}  // namespace regard

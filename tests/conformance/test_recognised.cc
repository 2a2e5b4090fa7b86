#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "conformance/compare.h"
#include "conformance/problem.h"
#include "conformance/rng.h"
#include "oracle/oracle.h"
#include "regard/attention.h"
#include "tests/support/backends.h"

// Functions that are recognised as windows and softcaps, and ones that only look like it, against
// the oracle, which evaluates the text that the request has.

namespace regard {
namespace {

using conformance::Comparison;
using conformance::Rng;

/// Runs the case's tensors with functions as they are given; "" when the result is the text's.
std::string run_recognised(const std::string& base, const std::string& score,
                           const std::string& mask) {
  const conformance::Problem problem = conformance::make_problem(parse_case(base).value());
  AttentionRequest r = problem.request();
  if (!score.empty()) r.options.score_function = Expression::parse(score).value();
  if (!mask.empty()) r.options.mask_function = Expression::parse(mask).value();
  const Expected<oracle::Truth> truth = oracle::compute(r);
  if (!truth) return truth.status().to_string();
  static const std::unique_ptr<Context> context = test::make_context(Isa::kScalar);
  Policy policy;
  policy.only = std::vector<BackendRef>{test::kMathRef};
  const Status status = attention(*context, r, policy);
  if (!status.ok()) return status.to_string();
  const Comparison comparison = conformance::compare(r, *truth);
  return comparison.ok ? "" : comparison.text;
}

/// How many windows and softcaps describe() makes of functions.
int recognised(const std::string& base, const std::string& score, const std::string& mask) {
  const conformance::Problem problem = conformance::make_problem(parse_case(base).value());
  AttentionRequest r = problem.request();
  if (!score.empty()) r.options.score_function = Expression::parse(score).value();
  if (!mask.empty()) r.options.mask_function = Expression::parse(mask).value();
  const FeatureSet f = describe(r).value().features;
  int count = 0;
  for (const Feature feature :
       {Feature::kCausal, Feature::kWindowLeft, Feature::kWindowRight, Feature::kSoftcap}) {
    count += f.has(feature) ? 1 : 0;
  }
  return count;
}

struct Form {
  const char* score;
  const char* mask;
  int features;  // that are recognised
};

const Form kForms[] = {
    {"", "kv_idx<=q_idx", 1},
    {"", "q_idx>=kv_idx&q_idx-kv_idx<5", 2},
    {"", "abs(kv_idx-q_idx)<=4", 2},
    {"where(kv_idx<=q_idx,score,-inf)", "", 1},
    {"where(kv_idx>q_idx,-inf,score)", "", 1},
    {"where(!(kv_idx>q_idx),8.0*tanh(score/8.0),-inf)", "", 2},
    {"8.0*tanh(score/8.0)", "", 1},
    {"tanh(score/0.5)*0.5", "", 1},
    // What is near and is another function.
    {"8.0*tanh(score/4.0)", "", 0},
    {"-8.0*tanh(score/-8.0)", "", 0},
    {"8.0*tanh(8.0/score)", "", 0},
    {"8.0*tanh(score*8.0)", "", 0},
    {"where(kv_idx<=q_idx,score,inf*-0.5)", "", 0},
    {"where(score<0.5,score,-inf)", "", 0},
    {"where(kv_idx<=q_idx,-inf,-inf)", "", 0},
    {"where(kv_idx<=q_idx,-inf,score)", "",
     1},  // keys after the diagonal alone: a window to the left of -1
    {"", "kv_idx<=q_idx|kv_idx<3", 0},
    {"", "!(kv_idx<=q_idx&kv_idx>3)", 0},
    {"", "kv_idx<=q_idx+h", 0},
    {"", "kv_idx<=q_idx*1", 0},
    {"", "kv_idx<=q_idx*2", 0},
    {"", "kv_idx<=q_idx-3", 0},
    {"", "kv_idx+kv_idx<=q_idx", 0},
    {"", "kv_idx<=q_len-q_idx", 0},
    {"", "abs(kv_idx+q_idx)<=9", 0},
    {"", "abs(kv_idx-q_idx)>=4", 0},
    {"", "abs(kv_idx-q_idx-1)<=4", 0},
    {"", "kv_idx==q_idx", 0},
};

TEST(Recognised, FormsAndWhatOnlyLooksLikeThem) {
  const std::string base = "b2 hq3 sq13 skv17 d8 f32 lse seed=5";
  for (const Form& form : kForms) {
    EXPECT_EQ(run_recognised(base, form.score, form.mask), "") << form.score << " " << form.mask;
    if (std::string(form.score) == "where(kv_idx<=q_idx,-inf,score)") continue;  // either is right
    EXPECT_EQ(recognised(base, form.score, form.mask), form.features)
        << form.score << " " << form.mask;
  }
}

// With diagonals of their own, beside other functions and fields.
TEST(Recognised, BesideOtherFields) {
  for (const char* base : {"b2 hq3 sq13 skv17 d8 f32 causal diag=br lse seed=5",
                           "b2 hq3 sq13 skv17 d8 f32 window=4,2 diag=3 lse seed=5",
                           "b3 hq2 sq13 skv17 d8 f32 causal diag=br lens lse seed=6",
                           "b2 hq3 sq13 skv17 d8 f32 window=-1,5 diag=tl softcap=2 lse seed=7",
                           "b2 hq3 sq13 skv17 d8 f32 alibi diag=br mask=kv_idx%3!=1 lse seed=8"}) {
    for (const char* mask : {"kv_idx<=q_idx", "kv_idx<=q_pos", "q_idx-kv_idx<6&kv_idx<=q_pos+2",
                             "abs(q_pos-kv_idx)<=5&kv_idx!=4"}) {
      EXPECT_EQ(run_recognised(base, "", mask), "") << base << " " << mask;
      EXPECT_EQ(
          run_recognised(base, std::string("where(") + mask + ",3.0*tanh(score/3.0),-inf)", ""), "")
          << base << " " << mask;
    }
  }
}

/// A comparison of two sums of indices and numbers.
std::string random_comparison(Rng* rng) {
  const auto sum = [&] {
    std::string text;
    const std::int64_t terms = rng->between(1, 2);
    for (std::int64_t n = 0; n < terms; ++n) {
      const char* const kTerms[] = {"q_idx", "kv_idx", "q_idx", "kv_idx", "q_pos", "1", "3"};
      if (n > 0 || rng->chance(0.2)) text += rng->chance(0.5) && n > 0 ? "+" : "-";
      text += rng->pick(kTerms);
    }
    return rng->chance(0.15) ? "abs(" + text + ")" : text;
  };
  const char* const kComparisons[] = {"<", "<=", ">", ">="};
  const std::string text = sum() + rng->pick(kComparisons) + sum();
  return rng->chance(0.15) ? "!(" + text + ")" : text;
}

TEST(Recognised, RandomComparisonsOfIndices) {
  int found = 0;
  for (std::uint64_t n = 0; n < 1500; ++n) {
    Rng rng(n, 0x7265636f676e);
    std::string mask = random_comparison(&rng);
    if (rng.chance(0.4)) mask += (rng.chance(0.7) ? "&" : "|") + random_comparison(&rng);
    const char* const kBases[] = {"b1 hq1 sq7 skv9 d2 f32 lse seed=1",
                                  "b1 hq1 sq7 skv9 d2 f32 causal diag=br lse seed=2",
                                  "b1 hq1 sq9 skv6 d2 f32 window=2,1 diag=-1 lse seed=3"};
    const std::string base = rng.pick(kBases);
    const bool is_named = base.find("diag") != std::string::npos;
    if (!is_named && mask.find("q_pos") != std::string::npos) continue;
    const bool in_score = rng.chance(0.3);
    const std::string score = in_score ? "where(" + mask + ",score,-inf)" : "";
    EXPECT_EQ(run_recognised(base, score, in_score ? "" : mask), "") << base << " " << mask;
    found += recognised(base, score, in_score ? "" : mask) > recognised(base, "", "") ? 1 : 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(found, 12);
}

TEST(Recognised, LeavesTheRestAsItWasWritten) {
  const auto rest_of = [](const char* mask) {
    Case c = parse_case(std::string("sq8 skv8 d4 f32 diag=br mask=") + mask).value();
    return std::string(c.params.mask_function.text());
  };
  EXPECT_EQ(rest_of("h!=1&(b!=2&kv_idx!=3)"), "h!=1&(b!=2&kv_idx!=3)");
  EXPECT_EQ(rest_of("kv_idx<=q_pos&(h!=1&(b!=2&kv_idx!=3))"), "h!=1&(b!=2&kv_idx!=3)");
  EXPECT_EQ(rest_of("h!=1&(q_pos-kv_idx<3&(b!=2&kv_idx!=3))"), "h!=1&(b!=2&kv_idx!=3)");
  EXPECT_EQ(rest_of("h!=1&(q_pos-kv_idx<3&true)"), "h!=1");
  EXPECT_EQ(rest_of("kv_idx<=q_pos&(q_pos-kv_idx<3&true)"), "");
}

}  // namespace
}  // namespace regard

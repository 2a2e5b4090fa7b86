#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/select/predictions.h"
#include "core/select/tuning.h"
#include "mock_backend.h"

// The cost model: what it predicts, how it is fitted, and what explain makes of it.

namespace regard::test {
namespace {

constexpr CostTerms kTerms = {2e-6, 1e-7, 1.5, 10.0, 5.0, 1.25, 1.2};

/// A machine of round numbers: 1e11 operations of f32 and 1e10 bytes a second, on one thread.
CostModel round_model() {
  CostModel model;
  model.source = "a test";
  model.rates.f32_gflops = 100.0;
  model.rates.f64_gflops = 50.0;
  model.rates.bf16_gflops = 200.0;
  model.rates.read_gbps = 10.0;
  model.l2_bytes = model.l3_bytes = 1;
  for (const BackendId backend : {BackendId::kFlash, BackendId::kEfficient, BackendId::kMath}) {
    for (int kind = 0; kind < kCostKindCount; ++kind) {
      for (int types = 0; types < kCostTypesCount; ++types) {
        model.entries.push_back(
            {backend, static_cast<CostKind>(kind), static_cast<CostTypes>(types), kTerms});
      }
    }
  }
  return model;
}

CostTerms& terms_of(CostModel* model, BackendId backend, CostKind kind,
                    CostTypes types = CostTypes::kFloats) {
  for (CostEntry& entry : model->entries) {
    if (entry.backend == backend && entry.kind == kind && entry.types == types) return entry.terms;
  }
  throw std::logic_error("no such entry");
}

double seconds(const CostModel& model, const std::string& words, bool backward = false,
               const BackendRef& backend = kFlash) {
  return predict_time(model, backend, case_params(words.c_str()), backward).seconds;
}

TEST(Costs, APredictionIsTheSumOfItsTerms) {
  // Two heads of 3 row blocks each, 128 x 256 scores, and as many rows of 64 + 64 elements.
  const double scores = 2 * 128.0 * 256, bytes = 2 * (2 * 128 + 2 * 256) * 64 * 4.0;
  const double compute = scores * 2 * 128 * 1.5 / 1e11 + scores * 10 / 1e11;
  const double memory = bytes * 1.25 / 1e10;
  const double expected =
      2e-6 + 2 * 3 * 1e-7 + 2 * (128 + 256) * 128 * 5 / 1e11 + std::hypot(compute, memory);
  EXPECT_NEAR(seconds(round_model(), "b1 hq2 sq128 skv256 d64 f32") / expected, 1.0, 1e-6);
}

TEST(Costs, KindsAndTypesHaveTermsOfTheirOwn) {
  const struct {
    const char* words;
    bool backward;
    CostKind kind;
    CostTypes types;
  } rows[] = {{"b1 hq4 hkv1 sq3 skv512 d64 f32", false, CostKind::kDecode, CostTypes::kFloats},
              {"b1 hq4 hkv1 sq5 skv512 d64 bf16", false, CostKind::kShort, CostTypes::kPairs},
              {"b1 hq1 sq64 d64 f16", false, CostKind::kShort, CostTypes::kConverted},
              {"hq1 sq1 skv64 d64 bf16 kv=i8", false, CostKind::kDecode, CostTypes::kI8},
              {"hq1 sq1 skv64 d64 f32 kv=bf16 v=u4", false, CostKind::kDecode, CostTypes::kU4},
              {"hq1 sq64 d64 f32 kv=f8e5m2", false, CostKind::kShort, CostTypes::kF8},
              {"b1 hq1 sq65 d64 f64", false, CostKind::kPrefill, CostTypes::kFloats},
              {"b1 hq1 sq8 d64 f32 grad saved", true, CostKind::kBackward, CostTypes::kFloats}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.words);
    CostModel model = round_model();
    const double before = seconds(model, row.words, row.backward);
    terms_of(&model, BackendId::kFlash, row.kind, row.types).call += 1.0;
    EXPECT_NEAR(seconds(model, row.words, row.backward), before + 1.0, 1e-9);
  }
}

TEST(Costs, GrowWithTheProblemAndFallWithTheRates) {
  CostModel model = round_model();
  const std::string prefill = "b2 hq4 sq512 d64 f32", decode = "b2 hq4 sq1 skv8192 d64 f32";
  for (const char* more : {"b3 hq4 sq512 d64 f32", "b2 hq8 sq512 d64 f32", "b2 hq4 sq512 d128 f32",
                           "b2 hq4 sq600 d64 f32"}) {
    EXPECT_GT(seconds(model, more), seconds(model, prefill)) << more;
  }
  for (const char* more : {"b3 hq4 sq1 skv8192 d64 f32", "b2 hq8 sq1 skv8192 d64 f32",
                           "b2 hq4 sq1 skv8192 d128 f32", "b2 hq4 sq1 skv9000 d64 f32"}) {
    EXPECT_GT(seconds(model, more), seconds(model, decode)) << more;
  }
  EXPECT_LT(seconds(model, prefill + " causal"), seconds(model, prefill));
  EXPECT_GT(seconds(model, prefill + " mask"), seconds(model, prefill));
  EXPECT_GT(seconds(model, prefill + " grad saved", true), seconds(model, prefill));
  EXPECT_LT(seconds(model, "b4 hq2 sq512 d64 f32 lens tokens_q=512 tokens_kv=512"),
            seconds(model, "b4 hq2 sq512 d64 f32"));
  const double slow_prefill = seconds(model, prefill), slow_decode = seconds(model, decode);
  model.rates.f32_gflops *= 4;
  EXPECT_LT(seconds(model, prefill), 0.5 * slow_prefill);
  const double memory_bound = seconds(model, decode);
  model.rates.read_gbps *= 4;
  EXPECT_LT(seconds(model, decode), 0.5 * memory_bound);
  EXPECT_LT(memory_bound, slow_decode);
  // Caches: the same bytes are faster where they fit.
  const double from_memory = seconds(model, decode);
  model.l3_bytes = 1 << 30;
  EXPECT_LT(seconds(model, decode), 0.8 * from_memory);
}

TEST(Costs, ThreadsDivideWhatHasTasks) {
  CostModel model = round_model();
  const double one = seconds(model, "b8 hq4 sq512 d64 f32");
  model.rates.threads = 4;
  model.rates.f32_gflops *= 4;
  model.rates.read_gbps *= 4;
  EXPECT_NEAR(seconds(model, "b8 hq4 sq512 d64 f32") / one, 0.25, 0.05);
  // One sequence of MATH's decode rows is one task; FLASH splits its keys.
  const std::string decode = "b1 hq1 sq1 skv4096 d128 f32";
  EXPECT_GT(seconds(model, decode, false, kMath), seconds(model, decode, false, kFlash));
}

TEST(Costs, AreUnknownWithoutTerms) {
  CostModel model = round_model();
  EXPECT_FALSE(predict_time(model, kCudnn, case_params("sq64 d64 bf16"), false).known());
  EXPECT_FALSE(predict_time(model, kFlash, case_params("sq64 d64 f32 device=cuda"), false).known());
  EXPECT_FALSE(predict_time(model, {BackendId::kCustom, "mine"}, case_params("sq64 d64 f32"), false)
                   .known());
  model.entries.clear();
  EXPECT_FALSE(predict_time(model, kFlash, case_params("sq64 d64 f32"), false).known());
}

TEST(Costs, OfEmptyAndHugeProblemsAreFinite) {
  const CostModel model = default_costs(described_env());
  for (const char* words : {"b0 hq1 sq8 d8 f32", "b1 hq0 hkv0 sq8 d8 f32", "b1 hq1 sq0 skv8 d8 f32",
                            "b1 hq1 sq8 skv0 d8 f32", "b1 hq1 sq8 d0 f32",
                            "b1 hq1 sq4611686018427387904 skv1 d1 f32"}) {
    SCOPED_TRACE(words);
    const Expected<Case> parsed = parse_case(words);
    if (!parsed.ok()) continue;
    for (const bool backward : {false, true}) {
      const PredictedTime time = predict_time(model, kFlash, parsed->params, backward);
      EXPECT_TRUE(std::isfinite(time.seconds));
      EXPECT_GT(time.seconds, 0.0);
    }
  }
}

TEST(Costs, FormatsOfACacheWithoutTermsHaveThoseOfConvertedTypes) {
  CostModel model = round_model();
  terms_of(&model, BackendId::kFlash, CostKind::kDecode, CostTypes::kConverted).call = 1.0;
  std::erase_if(model.entries, [](const CostEntry& e) { return e.types > CostTypes::kConverted; });
  EXPECT_NEAR(seconds(model, "hq1 sq1 skv64 d64 bf16 kv=u4"), 1.0, 0.1);
  EXPECT_LT(seconds(model, "hq1 sq1 skv64 d64 bf16"), 0.1);
}

const CacheFormatPrediction& format_of(const std::vector<CacheFormatPrediction>& formats,
                                       Dtype dtype) {
  for (const CacheFormatPrediction& format : formats) {
    if (format.dtype == dtype) return format;
  }
  throw std::logic_error("no such format");
}

TEST(Costs, FormatsOfACacheAreFasterFromWhereTheirBytesOutweighTheirCall) {
  CostModel model = round_model();
  for (CostEntry& entry : model.entries) {
    entry.terms.arithmetic = 1e-3;
    entry.terms.scores = entry.terms.rows = entry.terms.task = 0.0;
    entry.terms.memory = 1.0;
    if (entry.types == CostTypes::kI8) entry.terms.call = 2e-6 + 1e-3;
    if (entry.types == CostTypes::kF8) entry.terms.memory = 3.0;
    if (entry.types == CostTypes::kU4) entry.terms.call = 1e-6;
  }
  const AttentionParams params = case_params("hq8 hkv8 sq1 skv1024 d128 bf16");
  const auto formats = predict_cache_formats(model, kFlash, params);
  ASSERT_EQ(formats.size(), 5u);
  // bf16 reads 4,096 bytes a token and int8 2,112 (a float for each row): at 1e10 bytes a second
  // 1 ms more of a call is worth it from 5,041 tokens on.
  const CacheFormatPrediction &bf16 = formats[0], &i8 = format_of(formats, Dtype::kI8);
  EXPECT_EQ(bf16.dtype, Dtype::kBf16);
  EXPECT_EQ(bf16.bytes, 4096.0);
  EXPECT_EQ(bf16.ratio, 1.0);
  EXPECT_FALSE(bf16.faster_from);
  EXPECT_EQ(i8.bytes, 2112.0);
  EXPECT_LT(i8.ratio, 1.0);
  EXPECT_EQ(i8.faster_from, 8192);
  EXPECT_FALSE(format_of(formats, Dtype::kF8E4M3).faster_from);
  EXPECT_EQ(format_of(formats, Dtype::kU4).bytes, 16 * (64 + 8 * 4.0));
  EXPECT_EQ(format_of(formats, Dtype::kU4).faster_from, 16);
  // The case's own format does not matter.
  EXPECT_EQ(
      predict_cache_formats(model, kFlash, case_params("hq8 hkv8 sq1 skv1024 d128 bf16 kv=i8")),
      formats);
  EXPECT_EQ(predict_cache_formats(model, kFlash, case_params("sq1 skv64 d64 f32"))[0].dtype,
            Dtype::kF32);
  for (const char* words : {"hq8 sq512 d64 bf16", "sq1 skv64 d64 bf16 device=cuda",
                            "sq1 skv64 d64 f64", "sq1 skv64 d64 bf16 grad"}) {
    EXPECT_TRUE(predict_cache_formats(model, kFlash, case_params(words)).empty()) << words;
  }
  EXPECT_TRUE(predict_cache_formats(model, kCudnn, params).empty());
}

TEST(Costs, ExplainStatesTheFormatsOfACache) {
  Context context(described_env());
  const AttentionParams params = case_params("hq8 hkv8 sq1 skv1024 d128 bf16 kv=i8 scales=token");
  const Selection selection = explain(context, params);
  const nlohmann::json doc = nlohmann::json::parse(to_json(selection))["cache_formats"];
  ASSERT_EQ(doc.size(), 5u);
  ASSERT_EQ(selection.cache_formats.size(), 5u);
  EXPECT_EQ(doc[0]["dtype"], "bf16");
  EXPECT_TRUE(doc[0]["faster_from"].is_null());
  EXPECT_EQ(doc[1]["seconds"].get<double>(), selection.find(kFlash)->forward_time.seconds);
  const std::string text = to_string(selection);
  EXPECT_NE(text.find("\nk and v  bytes a token  predicted  bf16's / its\nbf16     4096"),
            std::string::npos)
      << text;
  EXPECT_TRUE(explain(context, case_params("sq512 d64 bf16")).cache_formats.empty());
}

std::vector<CostObservation> observations(const CostModel& truth, const char* more) {
  std::vector<CostObservation> made;
  for (const int sq : {70, 128, 256, 512, 1024}) {
    for (const int d : {32, 64, 128}) {
      const AttentionParams params =
          case_params(("b1 hq4 sq" + std::to_string(sq) + " d" + std::to_string(d) + more).c_str());
      made.push_back(
          {BackendId::kFlash, params, false, predict_time(truth, kFlash, params, false).seconds});
    }
  }
  return made;
}

TEST(Costs, AFitFindsTheTermsOfWhatWasMeasured) {
  CostModel truth = round_model();
  CostTerms& terms = terms_of(&truth, BackendId::kFlash, CostKind::kPrefill);
  terms = {20e-6, 4e-7, 2.5, 40.0, 3.0, 1.1, 1.2};
  const CostModel fitted = fit_costs(round_model(), observations(truth, " f32"));
  EXPECT_EQ(terms_of(const_cast<CostModel*>(&fitted), BackendId::kFlash, CostKind::kPrefill).spread,
            kMinSpread);
  for (const char* words :
       {"b2 hq3 sq300 d96 f32", "b1 hq8 sq2048 d64 f32", "b1 hq4 sq100 d40 f32"}) {
    EXPECT_NEAR(seconds(fitted, words) / seconds(truth, words), 1.0, 0.1) << words;
    EXPECT_GT(std::abs(seconds(round_model(), words) / seconds(truth, words) - 1.0), 0.2) << words;
  }
  // What was not measured is as it was.
  EXPECT_EQ(seconds(fitted, "sq128 d64 bf16"), seconds(round_model(), "sq128 d64 bf16"));
  EXPECT_EQ(fit_costs(round_model(), observations(truth, " f32")), fitted);
}

TEST(Costs, AFitNeedsObservationsAndStatesTheirSpread) {
  CostModel truth = round_model();
  terms_of(&truth, BackendId::kFlash, CostKind::kPrefill).arithmetic = 9.0;
  std::vector<CostObservation> few = observations(truth, " f32");
  few.resize(kMinObservations - 1);
  EXPECT_EQ(fit_costs(round_model(), few), round_model());
  std::vector<CostObservation> noisy = observations(truth, " f32");
  for (std::size_t i = 0; i < noisy.size(); ++i) noisy[i].seconds *= i % 2 == 0 ? 2.0 : 0.5;
  CostModel fitted = fit_costs(round_model(), noisy);
  const double spread = terms_of(&fitted, BackendId::kFlash, CostKind::kPrefill).spread;
  EXPECT_GT(spread, 1.8);
  EXPECT_LT(spread, 4.2);
}

TEST(Costs, ExplainHasTheTimeOfEveryUsableBackend) {
  Context context(described_env());
  const Selection selection = explain(context, case_params("b1 hq4 sq512 d64 f32 grad saved"));
  EXPECT_EQ(selection.cost_source, "default rates");
  for (const Verdict& verdict : selection.candidates) {
    SCOPED_TRACE(to_string(verdict.backend));
    EXPECT_EQ(verdict.forward_time.known(), verdict.usable);
    EXPECT_EQ(verdict.backward_time.known(), verdict.usable);
    if (!verdict.usable) continue;
    EXPECT_GT(verdict.backward_time.seconds, verdict.forward_time.seconds);
    EXPECT_GT(verdict.forward_time.spread, 1.0);
    EXPECT_EQ(verdict.predicted_seconds(true),
              verdict.forward_time.seconds + verdict.backward_time.seconds);
    EXPECT_EQ(verdict.predicted_seconds(false), verdict.forward_time.seconds);
  }
  EXPECT_FALSE(explain(context, case_params("sq8 d8 f32")).candidates[0].backward_time.known());
}

TEST(Costs, TheDefaultsAreThoseOfTheMachineWithoutMeasuring) {
  Env slow = described_env(), fast = described_env();
  slow.isa = Isa::kScalar;
  fast.concurrency = 16;
  const AttentionParams params = case_params("b4 hq8 sq1024 d64 f32");
  const auto flash_seconds = [&](const Env& env) {
    return explain(params, {}, env).find(kFlash)->forward_time.seconds;
  };
  EXPECT_GT(flash_seconds(slow), 3 * flash_seconds(described_env()));
  EXPECT_LT(flash_seconds(fast), flash_seconds(described_env()));
}

// EFFICIENT takes a head at a time, FLASH shares the splits of its keys.
TEST(Costs, ThreeHeadsTakeTwoThreadsAsLongAsFour) {
  CostModel model;
  model.rates = default_rates(Isa::kAvx512, 2);
  for (const BackendId backend : {BackendId::kFlash, BackendId::kEfficient}) {
    const CostTerms arithmetic_alone{0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.2};
    model.entries.push_back({backend, CostKind::kDecode, CostTypes::kFloats, arithmetic_alone});
  }
  const auto seconds = [&](const BackendRef& backend, const char* words) {
    return predict_time(model, backend, case_params(words), false).seconds;
  };
  const double three = seconds(kEfficient, "b1 hq3 sq1 skv8192 d64 f32");
  const double four = seconds(kEfficient, "b1 hq4 sq1 skv8192 d64 f32");
  EXPECT_NEAR(three, four, 1e-9 * four);
  EXPECT_NEAR(seconds(kFlash, "b1 hq3 sq1 skv8192 d64 f32"), 0.75 * four, 1e-9 * four);
  EXPECT_NEAR(seconds(kEfficient, "b1 hq1 sq1 skv8192 d64 f32"), 0.5 * four, 1e-9 * four);
}

/// A table of this machine in which FLASH has a large cost of each call and MATH a large one of
/// each score.
TuningTable crossing_table(const Env& env) {
  TuningTable table;
  table.source = "fixture";
  table.version = env.version;
  table.isa = to_string(env.isa);
  table.cpu_model = env.cpu_model;
  table.concurrency = env.concurrency;
  table.costs = round_model();
  table.costs.source = "";
  table.costs.rates.isa = env.isa;
  table.costs.rates.threads = env.concurrency;
  for (CostEntry& entry : table.costs.entries) {
    if (entry.backend == BackendId::kFlash) entry.terms.call = 1e-3;
    if (entry.backend == BackendId::kEfficient) entry.terms.call = 1.0;
    if (entry.backend == BackendId::kMath) entry.terms.arithmetic = 4.0;
  }
  return table;
}

TEST(Costs, ATablesModelIsTakenWhereItHolds) {
  Context context(described_env());
  const AttentionParams params = case_params("b1 hq4 sq512 d64 f32");
  context.set_tuning(crossing_table(context.env()));
  Selection selection = explain(context, params);
  EXPECT_EQ(selection.cost_source, "tuning table fixture");
  EXPECT_EQ(selection.chosen, kFlash);
  EXPECT_EQ(selection.decided_by, "built-in order");
  EXPECT_TRUE(selection.warnings.empty());
  TuningTable other = crossing_table(context.env());
  other.cpu_model = "another";
  context.set_tuning(other);
  selection = explain(context, params);
  EXPECT_EQ(selection.cost_source, "default rates");
  EXPECT_EQ(selection.warnings.size(), 1u);
}

TEST(Costs, TheRunnerUpWinsWithEachOfItsChanges) {
  Context context(described_env());
  context.set_tuning(crossing_table(context.env()));
  const AttentionParams params = case_params("b1 hq4 sq512 d64 f32");
  const Selection selection = explain(context, params);
  ASSERT_TRUE(selection.runner_up);
  EXPECT_EQ(selection.runner_up->backend, kMath);
  EXPECT_GT(selection.runner_up->ratio, 1.0);
  ASSERT_GE(selection.runner_up->changes.size(), 3u);
  for (const Fix& change : selection.runner_up->changes) {
    SCOPED_TRACE(to_string(change));
    AttentionParams changed = params;
    Policy policy;
    ASSERT_TRUE(apply_fix(change, &changed, &policy).ok());
    const Selection after = explain(context, changed, policy);
    if (change.field == "policy.prefer") {
      EXPECT_EQ(after.chosen, kMath);
    } else {
      EXPECT_LT(after.find(kMath)->forward_time.seconds, after.find(kFlash)->forward_time.seconds);
    }
  }
  Policy alone;
  alone.only = {{BackendId::kFlash}};
  EXPECT_FALSE(explain(context, params, alone).runner_up);
}

TEST(Costs, TextAndJsonHaveTimesTheirSourceAndTheRunnerUp) {
  Context context(described_env());
  context.set_tuning(crossing_table(context.env()));
  const Selection selection = explain(context, case_params("b1 hq4 sq512 d64 f32"));
  const std::string text = to_string(selection);
  EXPECT_NE(text.find("next     math, predicted to take "), std::string::npos) << text;
  EXPECT_NE(text.find("; faster at seqlen_q "), std::string::npos) << text;
  EXPECT_NE(
      text.find("predicted from tuning table fixture: nine of ten calls are within the factor"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find(" x1.2 "), std::string::npos) << text;
  const nlohmann::json doc = nlohmann::json::parse(to_json(selection));
  EXPECT_EQ(doc["cost_source"], "tuning table fixture");
  EXPECT_EQ(doc["runner_up"]["backend"], "math");
  EXPECT_EQ(doc["runner_up"]["ratio"].get<double>(), selection.runner_up->ratio);
  EXPECT_EQ(doc["runner_up"]["changes"].size(), selection.runner_up->changes.size());
  EXPECT_EQ(doc["candidates"][0]["forward_time"]["seconds"].get<double>(),
            selection.candidates[0].forward_time.seconds);
  EXPECT_EQ(doc["candidates"][0]["forward_time"]["spread"].get<double>(), 1.2);
  EXPECT_TRUE(doc["candidates"][0]["backward_time"].is_null());
  EXPECT_EQ(doc["given_up"], "");
}

TEST(Costs, ALimitOfMemoryStatesWhatItGaveUp) {
  Context context(described_env());
  context.set_tuning(crossing_table(context.env()));
  const AttentionParams params = case_params("b1 hq4 sq4096 d64 f32");
  const Selection free = explain(context, params);
  ASSERT_EQ(free.chosen, kFlash);
  Policy limited;
  limited.max_workspace_bytes = free.find(kFlash)->workspace_bytes - 64;
  const Selection selection = explain(context, params, limited);
  ASSERT_TRUE(selection.ok());
  ASSERT_NE(selection.chosen, kFlash);
  EXPECT_EQ(given_up(free), "");
  const std::string text = given_up(selection);
  EXPECT_NE(text.find("flash, which needs "), std::string::npos) << text;
  EXPECT_NE(text.find(" of workspace and is predicted to take "), std::string::npos) << text;
  EXPECT_NE(to_string(selection).find("gave up  " + text + "\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(selection))["given_up"], text);
}

/// A limit that FLASH alone exceeds.
Policy below_flash(Context& context, const AttentionParams& params) {
  Policy limited;
  limited.max_workspace_bytes = explain(context, params).find(kFlash)->workspace_bytes - 64;
  return limited;
}

TEST(Costs, TheFastestThatFitsTheMemoryRuns) {
  Context context(described_env());
  TuningTable table = crossing_table(context.env());  // in which EFFICIENT takes a second
  context.set_tuning(table);
  const AttentionParams params = case_params("b1 hq4 sq128 d68 f32");
  const Policy limited = below_flash(context, params);
  const Selection selection = explain(context, params, limited);
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.decided_by, "predicted times within max_workspace_bytes");
  EXPECT_EQ(selection.find(kEfficient)->status(), VerdictStatus::kUsable);
  EXPECT_EQ(plan(context, params, limited)->backend(), kMath);
  EXPECT_NE(given_up(selection).find("flash, which needs "), std::string::npos);

  for (CostEntry& entry : table.costs.entries) {
    if (entry.backend == BackendId::kEfficient) entry.terms.call = 1e-9;
  }
  context.set_tuning(table);
  EXPECT_EQ(explain(context, params, limited).chosen, kEfficient);
  EXPECT_EQ(explain(context, params, limited).decided_by, "built-in order");
  EXPECT_EQ(plan(context, params, limited)->backend(), kEfficient);
}

// Nothing is given up, or something stands above predictions.
TEST(Costs, PredictionsDecideNothingElse) {
  Context context(described_env());
  TuningTable table = crossing_table(context.env());
  context.set_tuning(table);
  const AttentionParams params = case_params("b1 hq4 sq128 d68 f32");
  const Policy limited = below_flash(context, params);
  EXPECT_EQ(explain(context, params, deny({kFlash})).chosen, kEfficient);
  Policy denied = limited;
  denied.deny = {kFlash};
  EXPECT_EQ(explain(context, params, denied).chosen, kEfficient);
  Policy preferred = limited;
  preferred.prefer = {{kEfficient}};
  EXPECT_EQ(explain(context, params, preferred).chosen, kEfficient);
  Policy same_bits = limited;
  same_bits.require = Determinism::kThreadCountInvariant;
  EXPECT_EQ(explain(context, params, same_bits).chosen, kEfficient);
  EXPECT_EQ(plan(context, params, same_bits)->backend(), kEfficient);
  table.rules = {{"", {kFlash, kEfficient}}};
  context.set_tuning(table);
  EXPECT_EQ(explain(context, params, limited).chosen, kEfficient);
  EXPECT_EQ(explain(context, params, limited).decided_by, "tuning table fixture");
}

TEST(Costs, AFileGivesTheTableBack) {
  TuningTable table = crossing_table(described_env());
  table.rules = {{"sq<=32 bf16", {kMath, kEfficient}}, {"", {kEfficient}}};
  table.times = {
      {{BackendId::kMath, case_params("sq8 d8 f32 grad saved"), true, 1.5e-5}, 1.25e-5, 3e-5},
      {{BackendId::kFlash, case_params("sq9 d8 bf16 causal"), false, 2e-6}, 1e-6, 3e-6}};
  const Expected<TuningTable> read = parse_tuning_table(to_text(table), "fixture");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, table);
  EXPECT_EQ(to_text(*read), to_text(table));
}

TEST(Costs, BadLinesOfAFileAreRefused) {
  const std::string good = to_text(crossing_table(described_env()));
  const std::string cost =
      "cost math decode floats call=1 task=1 arithmetic=1 scores=1 rows=1 memory=1 spread=2";
  ASSERT_TRUE(parse_tuning_table("regard-tuning 1\n" + cost + "\n", "file").ok());
  for (const std::string& line :
       {std::string("rates f32=1"), std::string("rates f32=1 f64=1 bf16=1 read=1 l2=1 l3=0"),
        std::string("rates f32=nan f64=1 bf16=1 read=1 l2=1 l3=1"),
        std::string("rates f32=-1 f64=1 bf16=1 read=1 l2=1 l3=1"), std::string("cost"),
        cost + " more=1", cost.substr(0, cost.size() - 1), cost.substr(0, cost.size() - 10),
        "cost custom:x decode floats" + cost.substr(23), "cost math prefill ints" + cost.substr(23),
        cost.substr(0, cost.size() - 8) + "spread=0.5",
        cost.substr(0, cost.size() - 8) + "spread=inf", cost + "\n" + cost}) {
    const auto table = parse_tuning_table("regard-tuning 1\n" + line + "\n", "file");
    EXPECT_FALSE(table.ok()) << line;
    if (table.ok()) continue;
    EXPECT_NE(table.status().message().find("file:"), std::string::npos);
  }
  // Cut anywhere, or with a line more, a file is refused.
  for (std::size_t n = 17; n < good.size(); ++n) {
    EXPECT_FALSE(parse_tuning_table(good.substr(0, n), "file").ok()) << n;
  }
  EXPECT_FALSE(parse_tuning_table(good + "order : math\n", "file").ok());
}

TEST(Costs, ARuleMayExcludeAFeature) {
  Context context(described_env());
  TuningTable table = crossing_table(context.env());
  table.rules = {{"sq<=64 !causal", {kMath}}};
  context.set_tuning(parse_tuning_table(to_text(table), "rules").value());
  EXPECT_EQ(explain(context, case_params("sq8 d8 f32")).chosen, kMath);
  EXPECT_EQ(explain(context, case_params("sq8 d8 f32 causal")).chosen, kFlash);
}

TEST(Costs, ATableDoesNotDecideWhereBitsMustNotDependOnThreads) {
  Context context(described_env());
  TuningTable table = crossing_table(context.env());
  table.rules = {{"", {kMath}}};
  context.set_tuning(table);
  const AttentionParams params = case_params("sq8 d8 f32");
  EXPECT_EQ(explain(context, params).chosen, kMath);
  Policy policy;
  policy.require = Determinism::kRunToRun;
  EXPECT_EQ(explain(context, params, policy).chosen, kMath);
  policy.require = Determinism::kThreadCountInvariant;
  const Selection selection = explain(context, params, policy);
  EXPECT_EQ(selection.chosen, kFlash);
  EXPECT_EQ(plan(context, params, policy)->backend(), kFlash);
  EXPECT_EQ(selection.cost_source, "tuning table fixture");
  ASSERT_EQ(selection.warnings.size(), 1u);
  EXPECT_EQ(selection.warnings[0],
            "the order of tuning table fixture is skipped: policy.require is "
            "thread_count_invariant");
}

TEST(Costs, CalibrationListsWhatIsOff) {
  Context context(described_env());
  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);
  std::vector<float> data(8 * 8, 0.25f), out(data.size());
  AttentionRequest request;
  request.q = request.k = request.v = make_view(data.data(), Dtype::kF32, {1, 1, 8, 8});
  request.out = make_view(out.data(), Dtype::kF32, {1, 1, 8, 8});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(attention(context, request, only({kMath})).ok());
  TuningTable table = crossing_table(context.env());
  for (CostEntry& entry : table.costs.entries) entry.terms.call = 1000.0;
  context.set_tuning(table);
  ASSERT_TRUE(attention(context, request, only({kFlash})).ok());
  request.v = {};
  ASSERT_FALSE(attention(context, request).ok());
  ASSERT_EQ(calls.list.size(), 5u);
  EXPECT_FALSE(calls.list[4].predicted.known());
  calls.list[0].ns = calls.list[1].ns = 100;
  calls.list[2].ns = 1'000'000'000;
  for (int i = 0; i < 3; ++i) calls.list[static_cast<std::size_t>(i)].predicted = {80e-9, 1.2};
  const auto all = calibration(calls.list, 1.0);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].backend, kFlash);
  EXPECT_LT(all[0].ratio, 0.5);
  EXPECT_NEAR(all[0].predicted_seconds, 1000.0, 0.1);
  EXPECT_EQ(all[1].backend, kMath);
  EXPECT_EQ(all[1].calls, 3);
  EXPECT_NEAR(all[1].measured_seconds, 100e-9, 1e-12);
  EXPECT_NEAR(all[1].ratio, 1.25, 1e-9);
  EXPECT_EQ(all[1].direction, Direction::kForward);
  ASSERT_EQ(calibration(calls.list).size(), 1u);
  EXPECT_EQ(calibration(calls.list)[0].backend, kFlash);
  EXPECT_EQ(calibration(calls.list, 1.2).size(), 2u);
}

}  // namespace
}  // namespace regard::test

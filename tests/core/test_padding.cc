#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "mock_backend.h"
#include "regard/attention.h"

// Lengths, a mask or packed: predictions and the choice.

namespace regard::test {
namespace {

using conformance::Problem;

CostModel costs(double gflops, double gbps) {
  CostModel made;
  made.rates.isa = Isa::kAvx2;
  made.rates.f32_gflops = made.rates.f64_gflops = made.rates.bf16_gflops = gflops;
  made.rates.read_gbps = gbps;
  return made;
}

TEST(PredictPaths, CountWhatEachPathComputes) {
  const auto paths = predict_paths(
      case_params("b4 hq2 sq100 d8 f32 lens tokens_q=120 tokens_kv=200"), costs(10, 10));
  ASSERT_EQ(paths.size(), 3u);
  const double per_pair = 2.0 * 2 * (8 + 8);
  EXPECT_EQ(paths[0].operations, 4 * 30 * 50 * per_pair);
  EXPECT_EQ(paths[1].operations, 4 * 100 * 100 * per_pair);
  EXPECT_EQ(paths[2].operations, paths[0].operations);
  EXPECT_LT(paths[0].bytes, paths[2].bytes);  // of padded tensors: copies
  EXPECT_LT(paths[2].seconds, paths[1].seconds);
  // Copies cost more than a little padding behind a mask, and less than computing much of it.
  const auto packed_over_masked = [](const std::string& tokens) {
    const auto of_tokens = predict_paths(
        case_params("b32 hq8 sq64 d64 f32 lens tokens_q=" + tokens + " tokens_kv=" + tokens),
        costs(240, 24));
    EXPECT_EQ(fastest_path(of_tokens), PaddingPath::kLengths);  // both copy or compute more
    return of_tokens[2].seconds / of_tokens[1].seconds;
  };
  EXPECT_GT(packed_over_masked("2000"), 1.0);
  EXPECT_LT(packed_over_masked("205"), 1.0);
}

TEST(PredictPaths, OfPackedTensorsPackedIsTheFastest) {
  const auto paths =
      predict_paths(case_params("b4 hq2 sq100 d8 f32 packed total_q=120 total_kv=120"), {});
  EXPECT_EQ(fastest_path(paths), PaddingPath::kPacked);
  EXPECT_EQ(paths[2].bytes, 120 * 4 * 2 * 8 * 4.0);
}

TEST(PredictPaths, OfPackedTensorsPackedIsThePredictedForward) {
  const Env env = described_env();
  const AttentionParams params =
      case_params("b4 hq2 sq100 d64 f32 packed total_q=120 total_kv=120");
  const CostModel model = default_costs(env);
  const auto paths = predict_paths(params, model);
  EXPECT_EQ(paths[2].seconds, predict_time(model, kFlash, params, false).seconds);
  EXPECT_GT(paths[0].seconds, 1.5 * paths[2].seconds);  // copies
}

TEST(PredictPaths, CausalHalvesOperationsAndWindowsBoundThem) {
  const auto operations = [](const std::string& words) {
    return predict_paths(case_params("b2 hq1 sq64 d8 f32 lens " + words), {})[0].operations;
  };
  EXPECT_NEAR(operations("causal diag=tl") / operations(""), 0.5, 0.02);
  EXPECT_NEAR(operations("window=7,0 diag=tl") / operations(""), 7.5 / 64, 0.01);
}

TEST(PredictPaths, NothingWithoutLengthsAndHugeExtentsAreFinite) {
  EXPECT_TRUE(predict_paths(case_params("b4 sq100 d8 f32"), {}).empty());
  EXPECT_TRUE(predict_paths(case_params("b4 sq1 skv64 d8 f32 paged"), {}).empty());
  // The rates are a CPU's.
  for (const char* words : {"b4 sq100 d8 f32 lens", "b4 sq100 d8 f32 packed"}) {
    EXPECT_FALSE(predict_paths(case_params(words), {}).empty()) << words;
    EXPECT_TRUE(predict_paths(case_params(words + std::string(" device=cuda")), {}).empty())
        << words;
  }
  EXPECT_EQ(fastest_path({}), PaddingPath::kLengths);
  for (const char* words : {"b0 sq0 d0 f32 lens", "b1 sq1073741824 d64 f32 causal diag=tl lens",
                            "b3 sq0 d8 packed total_q=0 total_kv=0"}) {
    const auto paths = predict_paths(case_params(words), {});
    EXPECT_EQ(paths.size(), 3u) << words;
    for (const PathPrediction& path : paths) {
      EXPECT_GE(path.seconds, 0.0) << words;
      EXPECT_LT(path.seconds, 1e18) << words;
    }
  }
}

TEST(DefaultRates, GrowWithInstructionsAndThreads) {
  const MachineRates one = default_rates(Isa::kAvx2, 1);
  EXPECT_GT(one.f32_gflops, default_rates(Isa::kScalar, 1).f32_gflops);
  EXPECT_GT(default_rates(Isa::kAvx512Bf16, 1).bf16_gflops, one.bf16_gflops);
  EXPECT_EQ(default_rates(Isa::kAvx2, 4).f32_gflops, 4 * one.f32_gflops);
  EXPECT_GE(default_rates(Isa::kAvx2, 64).read_gbps, one.read_gbps);
}

TEST(DefaultRates, OfACpuOnRecordAreItsOwn) {
  const auto rates_of = [](Isa isa, const char* cpu) { return default_rates(isa, 2, cpu); };
  const MachineRates wide = rates_of(Isa::kAvx512Bf16, "AMD EPYC (family 26 model 2)");
  const MachineRates narrow = rates_of(Isa::kAvx512Bf16, "AMD EPYC (family 25 model 17)");
  EXPECT_GT(wide.f32_gflops, 2.0 * narrow.f32_gflops);
  EXPECT_EQ(wide.bf16_gflops, 2.0 * wide.f32_gflops);
  EXPECT_EQ(wide.f64_gflops, 0.5 * wide.f32_gflops);
  EXPECT_GT(wide.read_gbps, narrow.read_gbps);
  EXPECT_LT(rates_of(Isa::kAvx2, "AMD EPYC (family 26 model 2)").f32_gflops, 0.6 * wide.f32_gflops);
  // A CPU without AVX-512 of which an Env says otherwise, and texts that name no CPU on record.
  for (const char* cpu : {"AMD EPYC (family 25 model 1)", "AMD EPYC (family 26 model 99)", "",
                          "(family", "(family 26 model", " model 2", "(family x model 2)",
                          "(family 99999999999999999999 model 2)"}) {
    EXPECT_EQ(rates_of(Isa::kAvx512, cpu).f32_gflops, default_rates(Isa::kAvx512, 2).f32_gflops)
        << cpu;
  }
  EXPECT_TRUE(has_recorded_rates("AMD EPYC (family 25 model 1)"));
  EXPECT_FALSE(has_recorded_rates("AMD EPYC (family 26 model 99)"));
}

TEST(DefaultCosts, OfACpuOnRecordAreMoreCertain) {
  Env env = described_env();
  const AttentionParams params = case_params("b1 hq8 sq256 d64 f32");
  const PredictedTime unknown = predict_time(default_costs(env), kFlash, params, false);
  env.cpu_model = "AMD EPYC (family 26 model 2)";
  const PredictedTime recorded = predict_time(default_costs(env), kFlash, params, false);
  EXPECT_LT(recorded.seconds, unknown.seconds);
  EXPECT_LT(recorded.spread, 0.7 * unknown.spread);
}

TEST(Tokens, AreRoundedInTheKeyAndNeverDecide) {
  const AttentionParams p = case_params("b8 hq2 sq100 d8 f32 lens tokens_q=301 tokens_kv=301");
  EXPECT_EQ(AttentionKey::make(p, false)->params().tokens_q, extent_class(301));
  EXPECT_EQ(case_params("b8 sq100 d8 f32 lens=q tokens_q=301").tokens_kv, 0);
  EXPECT_EQ(to_string(p), "b8 hq2 hkv2 sq100 skv100 d8 f32 lens=both tokens_q=301 tokens_kv=301");
  EXPECT_NE(parse_case("sq8 d8 tokens_q=3").status().message().find("mean nothing without lengths"),
            std::string::npos);
  const Case base = parse_case("sq8 d8 lens tokens_q=3 tokens_kv=4").value();
  EXPECT_EQ(parse_case("lens=none", base).value().params.tokens_q, 0);
  EXPECT_EQ(parse_case("lens=kv", base).value().params.tokens_kv, 4);
  AttentionParams negative = p;
  negative.tokens_kv = -1;
  EXPECT_NE(validate(negative, "f").message().find("tokens_kv (-1) must be >= 0"),
            std::string::npos);
  // A plan of other tokens accepts the call.
  Context context;
  const Expected<Plan> made = plan(context, p);
  ASSERT_TRUE(made);
  Problem problem = conformance::make_problem(parse_case("b8 hq2 sq100 d8 f32 lens").value());
  Workspace workspace;
  std::vector<std::byte> memory(static_cast<std::size_t>(made->workspace_bytes()) + 64);
  const auto at = (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64;
  workspace = {reinterpret_cast<void*>(at), memory.size() - 64};
  Launch launch;
  launch.workspace = workspace;
  EXPECT_EQ(execute(*made, problem.request(), launch).to_string(), "ok");
}

TEST(Tokens, OfAForwardAreNotItsBackwards) {
  Context context;
  Problem problem =
      conformance::make_problem(parse_case("b2 hq1 sq8 d8 f32 lens saved grad").value());
  AttentionGradRequest r = problem.request();
  r.options.tokens_q = 9;
  PlannedCall planned;
  Launch launch;
  launch.planned = &planned;
  ASSERT_EQ(attention(context, r, {}, launch).to_string(), "ok");
  EXPECT_EQ(planned.plan.params().tokens_q, 9);
  r.saved.plan = planned.plan;
  r.options.tokens_q = 0;
  problem.begin_backward();
  EXPECT_EQ(attention_backward(context, r).to_string(), "ok");
}

TEST(ExplainPaths, AreInTextAndJson) {
  Context context(described_env());
  const Selection with = explain(context, case_params("b4 sq100 d8 f32 lens tokens_q=120"));
  ASSERT_EQ(with.paths.size(), 3u);
  EXPECT_NE(to_string(with).find("\npath "), std::string::npos);
  EXPECT_NE(to_string(with).find("fastest"), std::string::npos);
  EXPECT_NE(to_json(with).find("\"path\":\"packed\""), std::string::npos) << to_json(with);
  const Selection without = explain(context, case_params("b4 sq100 d8 f32"));
  EXPECT_EQ(to_string(without).find("path "), std::string::npos);
  EXPECT_NE(to_json(without).find("\"paths\":[]"), std::string::npos) << to_json(without);
}

struct PaddedCase {
  Problem problem;
  Lengths lengths;
};

PaddedCase padded_case(std::initializer_list<std::uint8_t> mask, std::int64_t batch,
                       const std::string& words) {
  const auto seqlen = static_cast<std::int64_t>(mask.size()) / batch;
  Problem problem = conformance::make_problem(
      parse_case("b" + std::to_string(batch) + " hq2 sq" + std::to_string(seqlen) + " d8 " + words)
          .value());
  problem.reset_outputs();
  return {std::move(problem),
          Lengths::from_mask(make_view(mask.begin(), Dtype::kU8, {batch, seqlen})).value()};
}

TEST(AttentionPadded, EveryPathHasTheSameResult) {
  Context context;
  PaddedCase c = padded_case({1, 1, 0, 1, 1, 1, 0, 0, 0}, 3, "f32 lse");
  const auto run = [&](PaddingPolicy policy) {
    c.problem.reset_outputs();
    const Status status =
        attention_padded(context, c.problem.request(), {c.lengths, c.lengths, policy});
    EXPECT_EQ(status.to_string(), "ok");
    EXPECT_EQ(c.problem.check_memory(), "");
    return c.problem.output_bytes();
  };
  const std::vector<unsigned char> packed = run(PaddingPolicy::kPacked);
  EXPECT_EQ(run(PaddingPolicy::kPadded), packed);  // rows come first: lengths
  EXPECT_EQ(run(PaddingPolicy::kAuto), packed);
}

/// out and lse of a call as numbers.
std::vector<float> results_of(PaddedCase& c, PaddingPolicy policy) {
  Context context;
  c.problem.reset_outputs();
  const PaddedSequences sequences{c.lengths, c.lengths, policy};
  EXPECT_EQ(attention_padded(context, c.problem.request(), sequences).to_string(), "ok");
  EXPECT_EQ(c.problem.check_memory(), "");
  const std::vector<unsigned char> bytes = c.problem.output_bytes();
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

TEST(AttentionPadded, AMaskGivesWhatPackedRowsGive) {
  for (const char* words : {"f32 lse", "f32 lse causal diag=tl", "f32 lse causal diag=br",
                            "f32 lse window=1,0 diag=tl", "f32 lse alibi diag=br"}) {
    PaddedCase c = padded_case({0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0}, 3, words);  // on the left
    const std::vector<float> packed = results_of(c, PaddingPolicy::kPacked);
    const std::vector<float> masked = results_of(c, PaddingPolicy::kPadded);
    ASSERT_EQ(packed.size(), masked.size());
    for (std::size_t i = 0; i < packed.size(); ++i) {
      if (packed[i] == masked[i]) continue;  // infinities of padding
      EXPECT_NEAR(packed[i], masked[i], 1e-5) << words << " at " << i;
    }
  }
}

TEST(AttentionPadded, ExplainIsOfTheProblemThatIsPlanned) {
  Context context;
  for (const char* words :
       {"f32", "f32 causal", "f32 window=1,0 lse", "f32 alibi", "f32 causal saved grad"}) {
    PaddedCase c = padded_case({1, 1, 0, 1, 0, 0}, 2, words);
    for (const PaddingPolicy policy : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
      const PaddedSequences sequences{c.lengths, c.lengths, policy};
      PlannedCall planned;
      Launch launch;
      launch.planned = &planned;
      const AttentionRequest& request = c.problem.request();
      ASSERT_EQ(attention_padded(context, request, sequences, {}, launch).to_string(), "ok");
      const Expected<Selection> selection = explain_padded(context, request, sequences);
      ASSERT_TRUE(selection) << selection.status().message();
      ASSERT_TRUE(selection->ok()) << to_string(*selection);
      EXPECT_EQ(selection->params.diagonal, planned.params->diagonal) << words;
      EXPECT_EQ(selection->params.features.bits(), planned.params->features.bits()) << words;
    }
  }
}

/// A table of this machine, which computes fast and reads slowly or the other way round.
TuningTable table_of_rates(const Env& env, double gflops, double gbps) {
  TuningTable table;
  table.version = env.version;
  table.isa = to_string(env.isa);
  table.cpu_model = env.cpu_model;
  table.concurrency = env.concurrency;
  table.costs = default_costs(env);
  for (double* rate : {&table.costs.rates.f32_gflops, &table.costs.rates.f64_gflops,
                       &table.costs.rates.bf16_gflops}) {
    *rate = gflops;
  }
  table.costs.rates.read_gbps = gbps;
  return table;
}

TEST(AttentionPadded, ATuningTableDecidesThePathUnlessBitsMayNotDependOnIt) {
  Context context;
  PaddedCase c = padded_case({0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, "f32");  // on the left
  const PaddedSequences sequences{c.lengths, c.lengths};
  const auto path = [&](double gflops, double gbps, const Policy& policy = {}) {
    context.set_tuning(table_of_rates(context.env(), gflops, gbps));
    PlannedCall planned;
    Launch launch;
    launch.planned = &planned;
    EXPECT_TRUE(attention_padded(context, c.problem.request(), sequences, policy, launch).ok());
    const auto selection = explain_padded(context, c.problem.request(), sequences, policy);
    EXPECT_EQ(planned.params->features.has(Feature::kPacked),
              fastest_path(selection->paths) == PaddingPath::kPacked);
    return fastest_path(selection->paths);
  };
  EXPECT_EQ(path(1e5, 1e-3), PaddingPath::kMask);
  EXPECT_EQ(path(1e-3, 1e5), PaddingPath::kPacked);
  Policy invariant;
  invariant.require = Determinism::kThreadCountInvariant;
  EXPECT_EQ(path(1e5, 1e-3, invariant), path(1e-3, 1e5, invariant));
}

TEST(AttentionPadded, PoliciesHoldTheirPaths) {
  const auto path = [](PaddedCase& c, PaddingPolicy policy) {
    return choose_path(c.problem.request(), {c.lengths, c.lengths, policy}, costs(240, 24));
  };
  PaddedCase first = padded_case({1, 1, 0, 0, 1, 0, 0, 0}, 2, "f32");
  EXPECT_EQ(path(first, PaddingPolicy::kPadded).value(), PaddingPath::kLengths);
  EXPECT_EQ(path(first, PaddingPolicy::kPacked).value(), PaddingPath::kPacked);
  PaddedCase holes = padded_case({1, 0, 1, 0, 1, 0, 0, 1}, 2, "f32");
  EXPECT_EQ(path(holes, PaddingPolicy::kPadded).value(), PaddingPath::kMask);
  PaddedCase causal = padded_case({1, 0, 1, 0, 1, 0, 0, 1}, 2, "f32 causal diag=tl");
  EXPECT_NE(path(causal, PaddingPolicy::kPadded).status().message().find("counts padding in dist"),
            std::string::npos);
  EXPECT_EQ(path(causal, PaddingPolicy::kAuto).value(), PaddingPath::kPacked);
  // Where packed is predicted to be faster, too.
  Problem problem = conformance::make_problem(parse_case("b4 hq8 sq128 d64 f32").value());
  std::vector<std::uint8_t> mask(4 * 128);
  for (std::size_t b = 0; b < 4; ++b) mask[b * 128 + 127] = 1;  // padded on the left
  const Lengths few = Lengths::from_mask(make_view(mask.data(), Dtype::kU8, {4, 128})).value();
  const auto of_few = [&](PaddingPolicy policy) {
    return choose_path(problem.request(), {few, few, policy}, costs(240, 24)).value();
  };
  EXPECT_EQ(of_few(PaddingPolicy::kAuto), PaddingPath::kPacked);
  EXPECT_EQ(of_few(PaddingPolicy::kPadded), PaddingPath::kMask);
}

// With what a backward reads.
TEST(AttentionPadded, StatisticsOfPaddingAreThoseOfRowsThatSeeNothing) {
  for (const char* words : {"f32 lse saved grad", "f32 lse saved sinks grad"}) {
    PaddedCase c = padded_case({1, 1, 0, 1, 1, 1, 0, 0, 0}, 3, words);
    results_of(c, PaddingPolicy::kPacked);
    const std::vector<unsigned char> packed = c.problem.output_bytes();
    results_of(c, PaddingPolicy::kPadded);
    EXPECT_EQ(c.problem.output_bytes(), packed) << words;
    PaddedCase left = padded_case({0, 1, 1, 1, 1, 1, 0, 0, 0}, 3, words);
    for (const PaddingPolicy policy : {PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
      results_of(left, policy);
      const TensorView& stats = left.problem.request().saved_stats;
      conformance::for_each_element(stats, [&](const auto& at, const unsigned char* element) {
        if (at[0] != 2 && (at[0] != 0 || at[2] != 0)) return;
        float x = 0;
        std::memcpy(&x, element, sizeof(x));
        EXPECT_EQ(x, at[3] == 0 ? -std::numeric_limits<float>::infinity() : 0.0f) << words;
      });
    }
  }
}

// Two sequences in one entry of a batch: packed, they are a batch of their own.
TEST(AttentionPadded, TensorsOfEntriesAreNotOfTheirSequences) {
  const std::int32_t ids[] = {0, 1, 0, 1, 0, 1, 2, 3};
  const Lengths lengths = Lengths::from_position_ids(make_view(ids, Dtype::kI32, {2, 4})).value();
  ASSERT_EQ(lengths.num_sequences(), 3);
  const auto path_of = [&](const std::string& words, PaddingPolicy policy) {
    const Problem problem =
        conformance::make_problem(parse_case("b2 hq2 sq4 d8 f32 " + words).value());
    return choose_path(problem.request(), {lengths, lengths, policy}, costs(240, 24));
  };
  for (const char* words : {"", "mask=1,1,1,1", "bias=1,H,1,1", "descales", "causal diag=tl"}) {
    const auto path = path_of(words, PaddingPolicy::kAuto);
    ASSERT_TRUE(path) << words << ": " << path.status().message();
    EXPECT_EQ(*path, PaddingPath::kPacked) << words;
  }
  for (const char* words :
       {"mask=B,1,1,1", "bias=B,1,1,1", "descales=head", "causal diag=seq", "alibi diag=tl"}) {
    for (const PaddingPolicy policy : {PaddingPolicy::kAuto, PaddingPolicy::kPacked}) {
      const auto path = path_of(words, policy);
      ASSERT_FALSE(path) << words;
      EXPECT_NE(path.status().message().find("no tensor of each entry of the batch"),
                std::string::npos)
          << words << ": " << path.status().message();
    }
  }
  // Slopes of heads alone, which no case has.
  const Problem problem =
      conformance::make_problem(parse_case("b2 hq2 sq4 d8 f32 alibi diag=tl").value());
  AttentionRequest request = problem.request();
  const float slopes[] = {1, 2};
  request.alibi_slopes = make_view(slopes, Dtype::kF32, {2});
  EXPECT_TRUE(choose_path(request, {lengths, lengths}, costs(240, 24)));
}

TEST(AttentionPadded, PackedSidesHaveOneSequenceEach) {
  const std::int32_t ids[] = {0, 1, 0, 1, 0, 1, 2, 3}, seqlens[] = {4, 4};
  const Lengths three = Lengths::from_position_ids(make_view(ids, Dtype::kI32, {2, 4})).value();
  const Lengths two = Lengths::from_seqlens(make_view(seqlens, {2}), 4).value();
  const Problem problem = conformance::make_problem(parse_case("b2 hq2 sq4 d8 f32").value());
  const auto path = choose_path(problem.request(), {three, two}, costs(240, 24));
  ASSERT_FALSE(path);
  EXPECT_NE(path.status().message().find("packed q and k need the same number of sequences"),
            std::string::npos)
      << path.status().message();
}

TEST(AttentionPadded, RefusalsWriteNothing) {
  Context context;
  const auto refusal = [&](PaddedCase& c, PaddedSequences sequences,
                           const AttentionRequest& request) {
    const std::vector<unsigned char> before = c.problem.output_bytes();
    const Status status = attention_padded(context, request, sequences);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(c.problem.output_bytes(), before) << status.message();
    EXPECT_EQ(choose_path(request, sequences, {}).status().message(), status.message());
    return status.message();
  };
  PaddedCase c = padded_case({0, 1, 1, 1}, 2, "f32 dropout=0.5");
  EXPECT_NE(refusal(c, {c.lengths, c.lengths, PaddingPolicy::kPadded}, c.problem.request())
                .find("dropout"),
            std::string::npos);
  EXPECT_NE(refusal(c, {Lengths(), c.lengths}, c.problem.request()).find("lengths of q"),
            std::string::npos);
  EXPECT_NE(refusal(c, {c.lengths, Lengths()}, c.problem.request()).find("lengths of k"),
            std::string::npos);
  const std::uint8_t longer[] = {1, 1, 1, 1, 1, 1};
  const Lengths other = Lengths::from_mask(make_view(longer, {2, 3})).value();
  EXPECT_NE(refusal(c, {other, c.lengths}, c.problem.request()).find("of 2 x 2 positions"),
            std::string::npos);
  PaddedCase biased = padded_case({0, 1, 1, 1}, 2, "f32 bias=1,1,Sq,Skv");
  EXPECT_NE(refusal(biased, {biased.lengths, biased.lengths, PaddingPolicy::kPacked},
                    biased.problem.request())
                .find("attn_bias of 1 position"),
            std::string::npos);
}

}  // namespace
}  // namespace regard::test

// Calls that check themselves: what is compared, what is caught and when, what it costs in memory,
// and what a violation leaves.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "conformance/generator.h"
#include "conformance/problem.h"
#include "faulty_backend.h"
#include "tests/support/allocations.h"
#include "tests/support/backends.h"
#include "tests/support/fixed_cases.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensors.h"
#include "tools/regard/safetensors.h"

namespace regard::test {
namespace {

Policy checking(std::int64_t every) {
  Policy policy;
  policy.self_check = every;
  return policy;
}

void ignore_line(void*, LogLevel, std::string_view) {}

void keep_line(void* lines, LogLevel, std::string_view line) {
  static_cast<std::vector<std::string>*>(lines)->emplace_back(line);
}

/// This machine, with a custom backend that gives FLASH's results until its `every` is set.
struct WithFaulty {
  explicit WithFaulty(int concurrency = 2) : context(read_env_with(concurrency)) {
    faulty = std::make_shared<FaultyBackend>(backend_of(context, kFlash), "faulty");
    add_backend(context, "faulty", faulty);
    context.set_log_sink(keep_line, &lines);
  }
  static Env read_env_with(int concurrency) {
    Env env = read_env();
    env.concurrency = concurrency;
    for (EnvVariable& v : env.variables) v = {v.name, "", false, "", v.meaning};
    return env;
  }
  /// Runs on the faulty backend alone, or prefers it.
  Policy policy(std::int64_t every, bool deny = false) const {
    Policy policy = deny ? prefer({custom("faulty")}) : only({custom("faulty")});
    policy.self_check = every;
    policy.self_check_dir = folder.path().string();
    if (deny) policy.self_check_deny = true;
    return policy;
  }

  TempFolder folder;
  std::vector<std::string> lines;
  Context context;
  std::shared_ptr<FaultyBackend> faulty;
};

// One of each kind of problem: what a row of the reference is computed from differs.
const char* const kKinds[] = {
    "b2 hq4 hkv2 sq37 skv90 d32 f32",
    "b2 hq4 hkv2 sq1 skv300 d64 bf16",
    "b3 hq4 hkv2 sq33 skv65 d16 f32 lens causal diag=br seed=3",
    "b2 hq4 sq33 skv65 d16 f32 mask bias=1,H,Sq,Skv seed=1",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 dropout=0.3 seed=9",
    "b2 hq4 sq33 skv65 d16 f32 alibi softcap=5 sinks causal diag=br",
    "b3 hq4 hkv2 sq33 skv65 d16 f32 packed causal diag=br seed=5",
    "b3 hq4 hkv2 sq3 skv64 d16 f32 paged lens_kv=64,30,3 page_size=16 seed=6",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 score=score*0.5+h",
    "b2 hq4 hkv2 sq33 skv65 d16 f32 layout=bshd segments seed=2",
};

TEST(SelfCheck, CorrectBackendsPassInEveryCaseAndType) {
  TempFolder folder;
  std::uint64_t checked = 0, rows = 0;
  for (const Forced& forced : forced_backends()) {
    const std::unique_ptr<Context> context = make_context(forced.isa);
    context->set_log_sink(ignore_line, nullptr);
    for (const char* words : forward_cases()) {
      for (const char* dtype : {" f32", " bf16", " f16"}) {
        const Expected<Case> c = parse_case(std::string(words) + dtype);
        if (!c || c->params.scores_kind != ScoresKind::kNone) continue;
        conformance::Problem problem = conformance::make_problem(*c);
        Policy policy = checking(1);
        policy.only = {{forced.backend}};
        policy.self_check_dir = folder.path().string();
        const Status status = attention(*context, problem.request(), policy);
        if (status.code() == StatusCode::kNoBackend) continue;
        ASSERT_TRUE(status.ok()) << words << dtype << ": " << status.to_string();
        ASSERT_EQ(problem.check_memory(), "") << words << dtype;
      }
    }
    for (const SelfCheckViolation& v : context->self_check_violations()) {
      ADD_FAILURE() << name_of(forced) << ": " << v.to_string();
    }
    const SelfCheckCounters counters = context->self_check_counters();
    checked += counters.checked;
    rows += counters.rows;
    const bool is_one_kernel = forced.backend == kMathRef && forced.isa == Isa::kScalar;
    EXPECT_EQ(counters.not_checked, is_one_kernel ? counters.calls : 0) << name_of(forced);
    EXPECT_EQ(counters.checked + counters.not_checked, counters.calls) << name_of(forced);
  }
  EXPECT_GT(checked, 300u);
  EXPECT_GT(rows, 10 * checked);
}

// Packed and paged rows, caches of few bits, rotary embedding, functions: every feature comes up.
TEST(SelfCheck, CorrectBackendsPassInRandomCases) {
  TempFolder folder;
  const std::unique_ptr<Context> context = make_context(read_env().isa);
  context->set_log_sink(ignore_line, nullptr);
  FeatureSet seen;
  for (std::uint64_t n = 0; n < 1200; ++n) {
    const Case c = conformance::random_case(5, n);
    if (c.params.scores_kind != ScoresKind::kNone) continue;
    conformance::Problem problem = conformance::make_problem(c);
    for (const BackendRef& backend : {kFlash, kEfficient, kMath}) {
      Policy policy = checking(1);
      policy.only = {{backend}};
      policy.self_check_dir = folder.path().string();
      const Status status = attention(*context, problem.request(), policy);
      if (status.code() == StatusCode::kNoBackend) continue;
      ASSERT_TRUE(status.ok()) << to_string(c) << ": " << status.to_string();
      seen = seen.with(c.params.features);
    }
    // Of rotated rows that are appended it does not know the bytes.
    if (!c.params.features.has(Feature::kAppendKv)) {
      ASSERT_EQ(problem.check_memory(), "") << to_string(c);
    }
    for (const SelfCheckViolation& v : context->self_check_violations()) {
      FAIL() << to_string(c) << ": " << v.to_string();
    }
  }
  for (const Feature feature :
       {Feature::kPacked, Feature::kPaged, Feature::kAppendKv, Feature::kRotary, Feature::kHadamard,
        Feature::kScales, Feature::kDropout, Feature::kScoreFunction, Feature::kTreeMask}) {
    EXPECT_TRUE(seen.has(feature)) << to_string(feature);
  }
  EXPECT_GT(context->self_check_counters().checked, 1500u);
}

TEST(SelfCheck, AFaultIsCaughtWithinTwiceTheCalls) {
  for (const char* words : kKinds) {
    const Expected<Case> c = parse_case(words);
    ASSERT_TRUE(c.ok()) << words << ": " << c.status().to_string();
    conformance::Problem problem = conformance::make_problem(*c);
    const bool is_decode = c->params.seqlen_q < 8;
    for (const std::int64_t every : {1, 7, 50}) {
      WithFaulty on;
      on.faulty->every = is_decode ? 1 : 5;
      const Policy policy = on.policy(every);
      std::int64_t calls = 0;
      while (on.context.self_check_counters().violations == 0 && calls < 4 * every) {
        const Status status = attention(on.context, problem.request(), policy);
        ASSERT_TRUE(status.ok()) << words << ": " << status.to_string();
        ++calls;
      }
      EXPECT_LE(calls, 2 * every) << words;
      ASSERT_EQ(on.context.self_check_counters().violations, 1u) << words;
      const SelfCheckViolation found = on.context.self_check_violations()[0];
      EXPECT_EQ(found.backend, custom("faulty"));
      EXPECT_EQ(found.output, "out");
      EXPECT_GT(found.error, found.tolerance);
    }
  }
}

TEST(SelfCheck, OneCallOfEachNIsChecked) {
  WithFaulty on;
  conformance::Problem problem = conformance::make_problem(parse_case(kKinds[0]).value());
  for (const std::int64_t every : {1, 3, 10}) {
    const std::uint64_t before = on.context.self_check_counters().checked;
    const std::int64_t calls = 30 * every;
    // The calls so far are a multiple of each N.
    for (std::int64_t n = 0; n < calls; ++n) {
      ASSERT_TRUE(attention(on.context, problem.request(), on.policy(every)).ok());
    }
    const std::uint64_t checks = on.context.self_check_counters().checked - before;
    EXPECT_NEAR(static_cast<double>(checks), 30.0, 1.0) << every;
  }
}

TEST(SelfCheck, EverySequenceHeadAndBlockOfRowsIsDrawn) {
  // One wrong row at a time: each is found in the end.
  const Case c = parse_case("b3 hq4 hkv2 sq40 skv20 d8 f32").value();
  conformance::Problem problem = conformance::make_problem(c);
  const std::int64_t rows = 3 * 4 * 40;
  for (const std::int64_t row : {std::int64_t{1}, rows / 2 - 7, rows}) {
    WithFaulty on;
    on.faulty->every = row;  // and its multiples
    int calls = 0;
    while (on.context.self_check_counters().violations == 0 && ++calls < 400) {
      ASSERT_TRUE(attention(on.context, problem.request(), on.policy(1)).ok());
    }
    EXPECT_EQ(on.context.self_check_counters().violations, 1u) << row;
  }
}

TEST(SelfCheck, SameCallsAreCheckedAtTheSamePlaces) {
  std::vector<std::string> places[2];
  for (std::vector<std::string>& found : places) {
    WithFaulty on;
    on.faulty->every = 3;
    conformance::Problem problem = conformance::make_problem(parse_case(kKinds[0]).value());
    for (int n = 0; n < 40; ++n) {
      ASSERT_TRUE(attention(on.context, problem.request(), on.policy(4)).ok());
      found.push_back(std::to_string(on.context.self_check_counters().violations));
    }
    for (const SelfCheckViolation& v : on.context.self_check_violations()) {
      found.push_back(std::to_string(v.batch) + " " + std::to_string(v.head) + " " +
                      std::to_string(v.row));
    }
  }
  EXPECT_EQ(places[0], places[1]);
}

TEST(SelfCheck, ADeniedBackendRunsNoMoreAndTheCallIsRunAgain) {
  WithFaulty on;
  conformance::Problem problem = conformance::make_problem(parse_case(kKinds[0]).value());
  ASSERT_TRUE(attention(on.context, problem.request(), {}).ok());
  const std::vector<unsigned char> right = problem.output_bytes();
  const AttentionParams params = describe(problem.request()).value();
  const Policy policy = on.policy(1, /*deny=*/true);
  const Plan held = plan(on.context, params, policy).value();
  ASSERT_EQ(held.backend(), custom("faulty"));
  const AttentionParams other = case_params("b1 hq2 hkv2 sq200 skv200 d64 bf16");
  ASSERT_EQ(plan(on.context, other, policy)->backend(), custom("faulty"));
  on.faulty->every = 2;
  ASSERT_TRUE(attention(on.context, problem.request(), policy).ok());
  EXPECT_EQ(problem.output_bytes(), right);
  EXPECT_EQ(on.context.self_check_counters().denied, 1u);
  EXPECT_TRUE(on.context.self_check_violations().at(0).denied);

  // Of every problem, those with a plan in the cache included.
  EXPECT_NE(plan(on.context, other, policy)->backend(), custom("faulty"));
  const Selection selection = explain(on.context, params, policy);
  EXPECT_NE(selection.chosen, custom("faulty"));
  ASSERT_FALSE(selection.find(custom("faulty"))->refusals.empty());
  EXPECT_NE(to_string(selection.find(custom("faulty"))->refusals[0]).find("failed a self-check"),
            std::string::npos);
  EXPECT_EQ(plan(on.context, params, only({custom("faulty")})).status().code(),
            StatusCode::kNoBackend);
  std::vector<char> memory(static_cast<std::size_t>(held.workspace_bytes()) + 64);
  Launch launch;
  launch.workspace = {
      reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64),
      static_cast<std::size_t>(held.workspace_bytes())};
  const Status refused = execute(held, problem.request(), launch);
  EXPECT_EQ(refused.code(), StatusCode::kRefusedAtPlan);
  EXPECT_NE(refused.message().find("may not run any more"), std::string::npos);
}

TEST(SelfCheck, WithoutDenyTheBackendRunsOn) {
  WithFaulty on;
  on.faulty->every = 2;
  conformance::Problem problem = conformance::make_problem(parse_case(kKinds[0]).value());
  for (int n = 0; n < 20; ++n) {
    ASSERT_TRUE(attention(on.context, problem.request(), on.policy(1)).ok());
  }
  const SelfCheckCounters counters = on.context.self_check_counters();
  EXPECT_EQ(counters.violations, 20u);
  EXPECT_EQ(counters.denied, 0u);
  EXPECT_EQ(on.context.self_check_violations().size(), 16u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(on.folder.path()), {}), 16);
  EXPECT_EQ(on.lines.size(), 20u);
}

TEST(SelfCheck, AViolationLeavesTheTensorsAndACommand) {
  WithFaulty on;
  on.faulty->every = 1;
  conformance::Problem problem =
      conformance::make_problem(parse_case("b2 hq4 hkv2 sq33 skv65 d16 f32 layout=bshd mask "
                                           "causal diag=br dropout=0.25 seed=7")
                                    .value());
  AttentionRequest request = problem.request();
  request.rng_offset = 0;  // which files of the command line lack
  ASSERT_TRUE(attention(on.context, request, on.policy(1)).ok());
  const SelfCheckViolation found = on.context.self_check_violations().at(0);
  ASSERT_NE(found.file, "") << found.not_written;
  EXPECT_EQ(found.command.find("regard run '" + found.file + "' --backend custom:faulty"), 0u)
      << found.to_string();
  const auto file = safetensors::MappedFile::open(found.file);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const safetensors::Contents& contents = file->contents();
  for (const char* name : {"q", "k", "v", "attn_mask"}) {
    ASSERT_NE(contents.find(name), nullptr) << name;
  }
  EXPECT_EQ(contents.find("out"), nullptr);
  const TensorView& q = problem.request().q;
  const TensorView copy = safetensors::view_of(*contents.find("q")).value();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(copy.shape[i], q.shape[i]);
  for (std::int64_t i = 0; i < q.shape[2]; ++i) {
    const float* from = static_cast<const float*>(q.data) + q.strides[1] + i * q.strides[2];
    const float* to = static_cast<const float*>(copy.data) + copy.strides[1] + i * copy.strides[2];
    ASSERT_EQ(std::memcmp(from, to, 16 * sizeof(float)), 0) << i;
  }
  ASSERT_EQ(on.lines.size(), 1u);
  for (const char* word : {"custom:faulty", "an error of", "causal", "reproduce with"}) {
    EXPECT_NE(on.lines[0].find(word), std::string::npos) << word << " in " << on.lines[0];
  }
}

TEST(SelfCheck, AFolderThatCannotBeMadeIsSaid) {
  WithFaulty on;
  on.faulty->every = 1;
  const std::string blocked = (on.folder.path() / "file").string();
  std::ofstream(blocked) << "x";
  Policy policy = on.policy(1);
  policy.self_check_dir = blocked + "/deeper";
  conformance::Problem problem = conformance::make_problem(parse_case(kKinds[0]).value());
  ASSERT_TRUE(attention(on.context, problem.request(), policy).ok());
  const SelfCheckViolation found = on.context.self_check_violations().at(0);
  EXPECT_EQ(found.file, "");
  EXPECT_NE(found.not_written.find("cannot make the folder"), std::string::npos)
      << found.not_written;
}

TEST(SelfCheck, WrongStatisticsAndNumbersThatAreNotFiniteAreViolations) {
  // FLASH's results, spoilt in one place.
  class Spoiler final : public FaultyBackend {
   public:
    using FaultyBackend::FaultyBackend;
    Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                   const Launch& launch) const override {
      const Status status = FaultyBackend::execute(plan, params, buffers, launch);
      float* const out = static_cast<float*>(buffers.out.data);
      float* const lse = static_cast<float*>(buffers.lse.data);
      for (std::int64_t n = 0; n < buffers.lse.num_elements(); ++n) {
        if (way == 1) lse[n] += 0.01f;
        if (way == 2) lse[n] = -std::numeric_limits<float>::infinity();
      }
      if (way == 3) out[5] = std::numeric_limits<float>::quiet_NaN();
      if (way == 4) out[5] = std::numeric_limits<float>::infinity();
      return status;
    }
    int way = 0;
  };
  for (const int way : {0, 1, 2, 3, 4}) {
    WithFaulty on;
    const auto spoiler = std::make_shared<Spoiler>(backend_of(on.context, kFlash), "spoiler");
    spoiler->way = way;
    add_backend(on.context, "spoiler", spoiler);
    Policy policy = on.policy(1);
    policy.only = {{custom("spoiler")}};
    conformance::Problem problem = conformance::make_problem(
        parse_case("b1 hq1 sq9 skv20 d16 f32 lse").value(), {conformance::Guard::kNone, true});
    ASSERT_TRUE(attention(on.context, problem.request(), policy).ok());
    ASSERT_EQ(on.context.self_check_counters().violations, way == 0 ? 0u : 1u) << way;
    if (way == 0) continue;
    EXPECT_EQ(on.context.self_check_violations()[0].output, way < 3 ? "lse" : "out") << way;
  }
}

TEST(SelfCheck, PlansStateTheBytesAndCallsAllocateNone) {
  WithFaulty on(1);
  conformance::Problem problem =
      conformance::make_problem(parse_case("b1 hq8 hkv2 sq1 skv500 d64 f32 lse").value());
  const AttentionParams params = describe(problem.request()).value();
  EXPECT_EQ(plan(on.context, params)->self_check_bytes(), 0);
  const std::int64_t before = on.context.leased_workspace_bytes();
  Policy policy = checking(1);
  const Plan made = plan(on.context, params, policy).value();
  EXPECT_GT(made.self_check_bytes(), 0);
  EXPECT_EQ(on.context.leased_workspace_bytes() - before, made.self_check_bytes());
  EXPECT_NE(made.to_string().find("self-check of 1 call in 1, "), std::string::npos);
  alignas(64) static char memory[1 << 20];
  Launch launch;
  launch.workspace = {memory, sizeof(memory)};
  ASSERT_TRUE(execute(made, problem.request(), launch).ok());
  const AllocationCounter counter;
  for (int n = 0; n < 10; ++n) ASSERT_TRUE(execute(made, problem.request(), launch).ok());
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(on.context.self_check_counters().checked, 11u);
}

TEST(SelfCheck, WhatIsNotCheckedIsSaid) {
  Context context(described_env());
  const auto warnings = [&](const std::string& words, std::int64_t every) {
    std::string all;
    for (const std::string& warning :
         explain(context, case_params(words), checking(every)).warnings) {
      all += warning + "\n";
    }
    return all;
  };
  EXPECT_EQ(warnings("b1 hq1 sq9 d16 f32", 5), "");
  EXPECT_EQ(warnings("b1 hq1 sq9 d16 f32 grad saved", 0), "");
  EXPECT_EQ(warnings("b1 hq1 sq9 d16 f32 grad saved", 5),
            "self_check compares the forward; gradients are not checked\n");
  EXPECT_EQ(warnings("b1 hq1 sq9 d16 f32 scores=probs", 5),
            "self_check does not compare scores_out\n");
  EXPECT_NE(warnings("b1 hq1 sq9 d16 f32 device=sm90", 5)
                .find("self_check checks nothing: its tensors lie on a CUDA device\n"),
            std::string::npos);
}

TEST(SelfCheck, PolicyOfTheHighestSourceHolds) {
  Context context(described_env());
  Policy outer = checking(1000);
  outer.self_check_deny = true;
  context.set_policy(outer);
  const AttentionParams params = case_params("b1 hq1 sq9 d16 f32");
  const Plan made = plan(context, params, checking(10)).value();
  EXPECT_EQ(made.policy().self_check, 10);
  EXPECT_EQ(made.policy().self_check_deny, true);
  EXPECT_EQ(plan(context, params, checking(0))->self_check_bytes(), 0);
  Policy bad = checking(-1);
  EXPECT_EQ(validate(bad, "test").message(), "[test] self_check of policy (-1) must be at least 0");
}

TEST(SelfCheck, ManyThreadsCatchAFaultAndDenyOnce) {
  WithFaulty on(2);
  on.faulty->every = 3;
  const Policy policy = on.policy(20, /*deny=*/true);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      conformance::Problem problem = conformance::make_problem(parse_case(kKinds[t]).value());
      for (int n = 0; n < 60; ++n) {
        if (!attention(on.context, problem.request(), policy).ok()) ++failures;
        if (n % 16 == t) on.context.trim();
        static_cast<void>(on.context.self_check_counters());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  const SelfCheckCounters counters = on.context.self_check_counters();
  EXPECT_EQ(counters.denied, 1u);
  EXPECT_GE(counters.calls, 240u);
  EXPECT_GT(counters.checked, 4u);
}

TEST(SelfCheck, APlanMayOutliveItsContext) {
  Plan held;
  conformance::Problem problem = conformance::make_problem(parse_case(kKinds[0]).value());
  TempFolder folder;
  {
    WithFaulty on(1);
    on.faulty->every = 1;
    Policy policy = on.policy(1);
    policy.self_check_dir = folder.path().string();
    held = plan(on.context, describe(problem.request()).value(), policy).value();
  }
  std::vector<char> memory(static_cast<std::size_t>(held.workspace_bytes()) + 64);
  Launch launch;
  launch.workspace = {
      reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64),
      static_cast<std::size_t>(held.workspace_bytes())};
  EXPECT_TRUE(execute(held, problem.request(), launch).ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace regard::test

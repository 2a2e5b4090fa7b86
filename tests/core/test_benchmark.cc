#include "regard/benchmark.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "mock_backend.h"

// How backends are measured: rounds, turns, what ends them; and what is printed of it.

namespace regard::test {
namespace {

using Clock = std::chrono::steady_clock;
using CallList = std::vector<std::function<Status()>>;

constexpr std::int64_t kHeads = 2, kSeqlen = 32, kHeadDim = 16;

/// A small call with a backward.
struct BenchmarkCall {
  explicit BenchmarkCall(bool needs_grad) : data(kHeads * kSeqlen * kHeadDim, 0.5f) {
    for (auto* tensor : {&out, &d_q, &d_k, &d_v}) tensor->assign(data.size(), 0.0f);
    request.q = request.k = request.v = view(data);
    request.out = view(out);
    if (!needs_grad) return;
    request.options.needs_grad = true;
    stats.resize(kHeads * kSeqlen * 2);
    request.saved_stats = make_view(stats.data(), Dtype::kF32, {1, kHeads, kSeqlen, 2});
    request.saved.stats = request.saved_stats;
    request.saved.kind = SavedContext::Kind::kStats;
    request.d_out = view(data);
    request.d_q = view(d_q);
    request.d_k = view(d_k);
    request.d_v = view(d_v);
  }
  static TensorView view(std::vector<float>& values) {
    return make_view(values.data(), {1, kHeads, kSeqlen, kHeadDim});
  }
  std::vector<float> data, out, stats, d_q, d_k, d_v;
  AttentionGradRequest request;
};

BenchmarkOptions rounds_of(int rounds) {
  BenchmarkOptions options;
  options.rounds = rounds;
  return options;
}

Benchmark rows_named(std::initializer_list<const char*> names) {
  Benchmark result;
  for (const char* name : names) {
    BenchmarkRow row;
    row.name = name;
    result.rows.push_back(row);
  }
  return result;
}

const BenchmarkRow* find(const Benchmark& result, const std::string& name, bool backward) {
  for (const BenchmarkRow& row : result.rows) {
    if (row.name == name && row.backward == backward) return &row;
  }
  return nullptr;
}

TEST(Benchmark, EveryUsableBackendForward) {
  Context context;
  BenchmarkCall call(false);
  const Expected<Benchmark> result = benchmark(context, call.request, {}, rounds_of(2));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->rounds, 2);
  EXPECT_FALSE(result->interrupted);
  EXPECT_EQ(result->machine.threads, context.env().concurrency);
  EXPECT_EQ(result->one_thread.threads, 1);
  const Selection selection = explain(context, result->params, {});
  EXPECT_EQ(result->chosen, to_string(selection.chosen));
  ASSERT_EQ(result->rows.size(), selection.candidates.size());
  int measured = 0;
  for (const Verdict& verdict : selection.candidates) {
    const BenchmarkRow* row = find(*result, to_string(verdict.backend), false);
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->reason.empty(), verdict.usable) << row->reason;
    EXPECT_EQ(row->seconds.empty(), !verdict.usable);
    if (!verdict.usable) continue;
    ++measured;
    EXPECT_EQ(row->kernel.rfind(row->name + "_", 0), 0u) << row->kernel;  // its own plan
    EXPECT_GE(row->workspace_bytes, 0);
    EXPECT_EQ(row->work.operations, 4.0 * kHeads * kSeqlen * kSeqlen * kHeadDim);
    EXPECT_GT(row->quantile(0.0), 0.0);
    EXPECT_LE(row->quantile(0.0), row->quantile(0.5));
    EXPECT_LE(row->quantile(0.5), row->quantile(1.0));
  }
  EXPECT_GE(measured, 3);
  EXPECT_FLOAT_EQ(call.out[0], 0.5f);  // it was computed
}

TEST(Benchmark, BackwardsToo) {
  Context context;
  BenchmarkCall call(true);
  const Expected<Benchmark> result = benchmark(context, call.request, {}, rounds_of(1));
  ASSERT_TRUE(result.ok()) << result.status().message();
  for (const char* name : {"flash", "efficient", "math"}) {
    for (const bool backward : {false, true}) {
      const BenchmarkRow* row = find(*result, name, backward);
      ASSERT_NE(row, nullptr) << name;
      EXPECT_FALSE(row->seconds.empty()) << name << ": " << row->reason;
    }
    const BenchmarkRow* backward = find(*result, name, true);
    EXPECT_EQ(backward->work.operations, 2.5 * find(*result, name, false)->work.operations);
    EXPECT_NE(backward->kernel, find(*result, name, false)->kernel);
  }
}

TEST(Benchmark, PoliciesLeaveOut) {
  Context context;
  BenchmarkCall call(false);
  Policy policy;
  policy.deny = {{BackendId::kMath, ""}};
  const Expected<Benchmark> result = benchmark(context, call.request, policy, rounds_of(1));
  ASSERT_TRUE(result.ok());
  const BenchmarkRow* math = find(*result, "math", false);
  EXPECT_TRUE(math->seconds.empty());
  EXPECT_NE(math->reason, "");
  EXPECT_FALSE(find(*result, "flash", false)->seconds.empty());
}

TEST(Benchmark, ABackendThatFailsIsNamedAndTheOthersAreMeasured) {
  Context context;
  const auto mock = std::make_shared<MockBackend>(generous_info("broken"));
  mock->refuse_execute = StatusCode::kInternal;
  add_backend(context, "broken", mock);
  BenchmarkCall call(false);
  const Expected<Benchmark> result = benchmark(context, call.request, {}, rounds_of(1));
  ASSERT_TRUE(result.ok());
  EXPECT_NE(find(*result, "custom:broken", false)->reason.find("engine says no"),
            std::string::npos);
  EXPECT_FALSE(find(*result, "flash", false)->seconds.empty());
}

TEST(Benchmark, AWorkspaceThatCannotBeHadLeavesOneRowOut) {
  Context context;
  const auto mock = std::make_shared<MockBackend>(generous_info("huge"));
  mock->workspace = std::int64_t{1} << 61;
  add_backend(context, "huge", mock);
  BenchmarkCall call(false);
  const Expected<Benchmark> result = benchmark(context, call.request, {}, rounds_of(1));
  ASSERT_TRUE(result.ok());
  EXPECT_NE(find(*result, "custom:huge", false)->reason.find("could not be allocated"),
            std::string::npos);
  EXPECT_FALSE(find(*result, "flash", false)->seconds.empty());
}

TEST(Benchmark, RefusesWhatItCannotTime) {
  Context context;
  BenchmarkCall call(false);
  call.request.k.shape[2] = 7;
  EXPECT_EQ(benchmark(context, call.request).status().code(), StatusCode::kInvalidArgument);
  BenchmarkCall far(false);
  for (TensorView* view : {&far.request.q, &far.request.k, &far.request.v, &far.request.out}) {
    view->device.type = DeviceType::kCuda;
  }
  const Status status = benchmark(context, far.request).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("cuda"), std::string::npos);
}

TEST(Measure, RowsTakeTurns) {
  std::string order;
  const auto call = [&order](char name) {
    return [&order, name] {
      if (order.empty() || order.back() != name) order += name;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Status();
    };
  };
  Benchmark result = rows_named({"a", "b", "c"});
  result.rows[1].reason = "left out";
  measure(&result, CallList{call('a'), {}, call('c')}, rounds_of(3));
  EXPECT_EQ(order, "acacac");
  EXPECT_EQ(result.rounds, 3);
  EXPECT_TRUE(result.rows[1].seconds.empty());
  for (const std::size_t i : {0u, 2u}) {
    EXPECT_GE(result.rows[i].seconds.size(), 3u);
    EXPECT_GT(result.rows[i].quantile(0.0), 0.9e-3);
  }
}

TEST(Measure, ShortCallsAreTimedTogether) {
  std::int64_t count = 0;
  Benchmark result = rows_named({"short"});
  measure(&result, CallList{[&count] {
    ++count;
    return Status();
  }},
          rounds_of(1));
  EXPECT_GT(count, 1000);
  EXPECT_LT(result.rows[0].seconds.size(), 1000u);
  EXPECT_LT(result.rows[0].quantile(0.5), 1e-5);
}

TEST(Measure, GoesOnForTheSecondsAndThreeRounds) {
  const CallList calls{[] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return Status();
  }};
  BenchmarkOptions options;
  options.seconds = 0.3;
  Benchmark result = rows_named({"a"});
  const auto start = Clock::now();
  measure(&result, calls, options);
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(300));
  options.seconds = 0.0;
  result = rows_named({"a"});
  measure(&result, calls, options);
  EXPECT_EQ(result.rounds, 3);
  EXPECT_EQ(result.rows[0].seconds.size(), 3u);
}

TEST(Measure, AFailureLeavesItsMessage) {
  int calls_of_a = 0;
  Benchmark result = rows_named({"a", "b"});
  measure(&result,
          CallList{[&] {
                     return ++calls_of_a > 3 ? Status(StatusCode::kInternal, "it broke") : Status();
                   },
                   [] { return Status(); }},
          rounds_of(2));
  EXPECT_EQ(result.rows[0].reason, "it broke");
  EXPECT_TRUE(result.rows[0].seconds.empty());
  EXPECT_EQ(calls_of_a, 4);
  EXPECT_EQ(result.rows[1].reason, "");
  EXPECT_EQ(result.rounds, 2);
}

TEST(Measure, AnInterruptKeepsWhatThereIs) {
  struct State {
    int runs = 0;
  } state;
  BenchmarkOptions options = rounds_of(1000);
  options.poll = [](void* p) noexcept { return ++static_cast<State*>(p)->runs > 4; };
  options.poll_state = &state;
  Benchmark result = rows_named({"a", "b"});
  const auto call = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return Status();
  };
  measure(&result, CallList{call, call}, options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.rounds, 2);
  EXPECT_EQ(result.rows[0].seconds.size(), 2u);

  result = rows_named({"a"});
  measure(&result, CallList{[] { return Status(StatusCode::kInterrupted, ""); }}, {});
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.rows[0].reason, "");
}

TEST(Measure, WaitsForThreadsThatSpin) {
  std::atomic<bool> spins{false};
  std::thread spinner;
  bool met_a_spinner = false;
  Benchmark result = rows_named({"spinner", "after"});
  measure(&result,
          CallList{[&] {
                     if (spinner.joinable()) return Status();
                     spins = true;
                     spinner = std::thread([&spins] {
                       const auto end = Clock::now() + std::chrono::milliseconds(150);
                       while (Clock::now() < end) {
                       }
                       spins = false;
                     });
                     return Status();
                   },
                   [&] {
                     met_a_spinner = met_a_spinner || spins;
                     return Status();
                   }},
          rounds_of(1));
  spinner.join();
  EXPECT_FALSE(met_a_spinner);
  EXPECT_TRUE(result.notes.empty());
}

TEST(Measure, SaysThatOthersComputed) {
  std::atomic<bool> ends{false};
  std::thread busy([&ends] {
    while (!ends) {
    }
  });
  Benchmark result = rows_named({"a"});
  const auto start = Clock::now();
  measure(&result, CallList{[] { return Status(); }}, rounds_of(5));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  ends = true;
  busy.join();
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_NE(result.notes[0].find("other threads"), std::string::npos);
}

TEST(BenchmarkRow, Quantiles) {
  BenchmarkRow row;
  EXPECT_EQ(row.quantile(0.5), 0.0);
  row.seconds = {4.0, 1.0, 3.0, 2.0};
  EXPECT_EQ(row.quantile(0.0), 1.0);
  EXPECT_EQ(row.quantile(0.5), 2.5);
  EXPECT_EQ(row.quantile(1.0), 4.0);
  EXPECT_EQ(row.quantile(7.0), 4.0);
}

/// One row measured, one refused.
Benchmark sample() {
  Benchmark result = rows_named({"flash", "cudnn"});
  result.params = case_params("b1 hq2 sq128 d64 f32");
  result.chosen = "flash";
  result.decided_by = "built-in order";
  result.machine.threads = 2;
  result.machine.f32_gflops = 200.0;
  result.machine.read_gbps = 40.0;
  result.one_thread.f32_gflops = 100.0;
  result.one_thread.read_gbps = 25.0;
  result.rounds = 3;
  BenchmarkRow& row = result.rows[0];
  row.kernel = "flash_avx2_f32";
  row.workers = 2;
  row.workspace_bytes = 3 << 10;
  row.work = {100e6, 8e6};
  row.seconds = {1e-3, 1e-3, 2e-3};
  result.rows[1].reason = "needs a device";
  return result;
}

TEST(Benchmark, Text) {
  EXPECT_EQ(to_string(sample()),
            "case     b1 hq2 hkv2 sq128 skv128 d64 f32\n"
            "chosen   flash, by built-in order\n"
            "machine  scalar, 2 threads: 200 GFLOP/s (100 on one) in f32, 40.0 GB/s (25.0 on one) "
            "from memory\n\n"
            "forward  median   middle half         GFLOP/s  of peak  GB/s  of memory  workspace  "
            "kernel\n"
            "flash    1.00 ms  1.00 ms .. 1.50 ms  100      50 %     8.00  20 %       3.00 KiB   "
            "flash_avx2_f32\n"
            "cudnn    needs a device\n");
}

TEST(Benchmark, Json) {
  const std::string json = to_json(sample());
  for (const char* part :
       {R"("case":"b1 hq2 hkv2 sq128 skv128 d64 f32")", R"("rounds":3)", R"("interrupted":false)",
        R"("seconds":0.001,"min_seconds":0.001,)", R"("third_quartile_seconds":0.0015,)",
        R"("gflops":100,"peak_share":0.5,"gbps":8,"memory_share":0.2)",
        R"("name":"cudnn","direction":"forward","reason":"needs a device","kernel":null)",
        R"("workspace_bytes":3072,"variant":"default","operations":)",
        R"("runs":0,"seconds":null)"}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
  }
}

}  // namespace
}  // namespace regard::test

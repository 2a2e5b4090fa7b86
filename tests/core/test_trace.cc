#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "grad_call.h"
#include "mock_backend.h"
#include "tests/support/scratch.h"

namespace regard::test {
namespace {

struct ForwardCall {
  explicit ForwardCall(std::int64_t seqlen = 8)
      : data(static_cast<std::size_t>(seqlen * 8), 0.25f), out(data.size()) {
    request.q = request.k = request.v = make_view(data.data(), Dtype::kF32, {1, 1, seqlen, 8});
    request.out = make_view(out.data(), Dtype::kF32, {1, 1, seqlen, 8});
  }
  std::vector<float> data, out;
  AttentionRequest request;
};

TEST(Trace, HasEveryCallWithItsPlanAndTime) {
  Context context(described_env());
  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);
  ForwardCall forward;
  ASSERT_TRUE(attention(context, forward.request, only({kMath})).ok());
  const Plan made = plan(context, describe(forward.request).value(), only({kMath})).value();
  Scratch scratch(made.workspace_bytes());
  ASSERT_TRUE(execute(made, forward.request, scratch.launch).ok());
  GradCall backward;
  ASSERT_TRUE(attention_backward(context, backward.request).ok());
  AttentionRequest pair = backward.request;
  pair.options.needs_grad = true;
  const Plan of_pair = plan(context, describe(pair).value(), only({kMath})).value();
  Scratch backward_scratch(of_pair.backward_workspace_bytes());
  ASSERT_TRUE(
      execute_backward(of_pair, backward.request, backward.request, backward_scratch.launch).ok());

  ASSERT_EQ(calls.list.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const CallTrace& call = calls.list[i];
    const bool is_backward = i >= 2;
    EXPECT_EQ(call.direction, is_backward ? Direction::kBackward : Direction::kForward);
    ASSERT_TRUE(call.params);
    EXPECT_EQ(call.params->seqlen_q, is_backward ? 4 : 8);
    EXPECT_GT(call.ns, 0);
    EXPECT_TRUE(call.status.ok());
    ASSERT_NE(call.kernel(), nullptr);
    EXPECT_EQ(call.kernel(), is_backward ? &call.plan.backward_kernel() : &call.plan.kernel());
    EXPECT_FALSE(call.kernel()->kernel.empty());
    EXPECT_TRUE(call.selection().ok());
    EXPECT_EQ(call.work.operations, is_backward ? 2 * 4 * 4 * 10 * 8 : 8 * 8 * 4 * 8);
    EXPECT_GT(call.work.bytes, 0);
  }
  EXPECT_EQ(calls.list[0].plan.backend(), kMath);
  EXPECT_EQ(calls.list[0].selection().decided_by, "call policy (only)");
}

TEST(Trace, TheSelectionIsOfTheCallsOwnExtents) {
  Context context(described_env());
  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);
  ForwardCall first(98), second(100);  // of one class of extents: the plan is the same
  ASSERT_TRUE(attention(context, first.request).ok());
  ASSERT_TRUE(attention(context, second.request).ok());
  ASSERT_EQ(context.plan_cache_counters().misses, 1u);
  const Selection selection = calls.list[1].selection();
  EXPECT_EQ(selection.params, *calls.list[1].params);
  EXPECT_EQ(selection.params.seqlen_kv, 100);
  EXPECT_EQ(selection, explain(context, *calls.list[1].params));
}

TEST(Trace, AFailedCallHasItsStatus) {
  Context context(described_env());
  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);
  ForwardCall call;
  EXPECT_FALSE(attention(context, call.request, only({kCudnn})).ok());
  AttentionRequest wrong = call.request;
  wrong.k.shape[3] = 7;
  EXPECT_FALSE(attention(context, wrong).ok());
  const Plan small = plan(context, case_params("sq4 d8 f32")).value();
  EXPECT_FALSE(execute(small, call.request).ok());
  EXPECT_FALSE(execute({}, call.request).ok());  // of no Context
  ASSERT_EQ(calls.list.size(), 3u);

  EXPECT_EQ(calls.list[0].status.code(), StatusCode::kNoBackend);
  ASSERT_NE(calls.list[0].status.selection(), nullptr);
  EXPECT_TRUE(calls.list[0].params);
  EXPECT_TRUE(calls.list[0].plan.empty());
  EXPECT_EQ(calls.list[0].kernel(), nullptr);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(calls.list[i].status.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(calls.list[i].params);
    EXPECT_EQ(calls.list[i].work.operations, 0);
  }
}

TEST(Trace, ARefusalInExecuteIsOneCallOfTheBackendThatRan) {
  Context context(described_env());
  auto mock = std::make_shared<MockBackend>(generous_info("picky"));
  mock->refuse_execute = StatusCode::kRefusedAtPlan;
  add_backend(context, "picky", mock);
  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);
  ForwardCall call;
  ASSERT_TRUE(attention(context, call.request, prefer({custom("picky"), kMath})).ok());
  ASSERT_EQ(calls.list.size(), 1u);
  EXPECT_EQ(calls.list[0].plan.backend(), kMath);
  EXPECT_EQ(calls.list[0].selection().warnings.size(), 1u);
}

TEST(Trace, EndsWithItsContextWhichAPlanMayOutlive) {
  TracedCalls calls;
  std::vector<std::string> lines;
  Plan made;
  ForwardCall call;
  {
    Env env = described_env();
    env.variables.push_back({"REGARD_LOG", "trace", true, "", ""});
    Context context(env);
    context.set_log_sink(
        [](void* user, LogLevel, std::string_view line) {
          static_cast<std::vector<std::string>*>(user)->emplace_back(line);
        },
        &lines);
    context.set_trace(TracedCalls::add, &calls);
    made = plan(context, describe(call.request).value(), only({kMath})).value();
    Scratch scratch(made.workspace_bytes());
    ASSERT_TRUE(execute(made, call.request, scratch.launch).ok());
  }
  EXPECT_EQ(calls.list.size(), 1u);
  EXPECT_EQ(lines.size(), 2u);  // a decision and a call
  Scratch scratch(made.workspace_bytes());
  ASSERT_TRUE(execute(made, call.request, scratch.launch).ok());
  EXPECT_EQ(calls.list.size(), 1u);
  EXPECT_EQ(lines.size(), 2u);
}

TEST(Trace, AnExceptionOfTheFunctionIsALineOfTheLog) {
  Context context(described_env());
  std::vector<std::string> lines;
  context.set_log_sink(
      [](void* user, LogLevel level, std::string_view line) {
        EXPECT_EQ(level, LogLevel::kWarning);
        static_cast<std::vector<std::string>*>(user)->emplace_back(line);
      },
      &lines);
  ForwardCall call;
  context.set_trace([](void*, const CallTrace&) { throw std::runtime_error("full"); }, nullptr);
  EXPECT_TRUE(attention(context, call.request).ok());
  context.set_trace([](void*, const CallTrace&) { throw 5; }, nullptr);
  EXPECT_TRUE(attention(context, call.request).ok());
  EXPECT_FLOAT_EQ(call.out[0], 0.25f);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "{\"event\":\"warning\",\"message\":\"the trace function threw: full\"}");
}

TEST(Trace, LaunchReceivesTheCallAndItsPlanWithoutATrace) {
  Context context(described_env());
  ForwardCall call;
  PlannedCall planned;
  Launch launch;
  launch.planned = &planned;
  ASSERT_TRUE(attention(context, call.request, only({kMath}), launch).ok());
  EXPECT_EQ(planned.plan.backend(), kMath);
  EXPECT_EQ(*planned.params, describe(call.request).value());
  EXPECT_EQ(planned.selection().decided_by, "call policy (only)");

  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);  // beside one, too
  planned = {};
  GradCall backward;
  ASSERT_TRUE(attention_backward(context, backward.request, {}, launch).ok());
  ASSERT_EQ(calls.list.size(), 1u);
  EXPECT_EQ(planned.plan.backend(), calls.list[0].plan.backend());
  EXPECT_EQ(planned.params, calls.list[0].params);
}

TEST(Trace, SharesAreRatesOverTheMachines) {
  CallTrace call;
  call.params = case_params("sq8 d8 bf16");
  call.ns = 1000;
  call.work = {5e4, 2e3};
  MachineRates rates;
  rates.f32_gflops = 100;
  rates.bf16_gflops = 200;
  rates.read_gbps = 10;
  EXPECT_DOUBLE_EQ(shares_of(call, rates).of_peak, 0.25);
  EXPECT_DOUBLE_EQ(shares_of(call, rates).of_bandwidth, 0.2);
  call.params = case_params("sq8 d8 f32");
  EXPECT_DOUBLE_EQ(shares_of(call, rates).of_peak, 0.5);
  EXPECT_EQ(shares_of(call, {}).of_peak, 0.0);
  call.params->device.type = DeviceType::kCuda;
  EXPECT_EQ(shares_of(call, rates).of_peak, 0.0);
  EXPECT_EQ(shares_of(CallTrace{}, rates).of_bandwidth, 0.0);
}

TEST(Trace, JsonHasTheCallAndItsKernel) {
  Context context(described_env());
  TracedCalls calls;
  context.set_trace(TracedCalls::add, &calls);
  ForwardCall call;
  ASSERT_TRUE(attention(context, call.request, only({kMath})).ok());
  const std::string text = to_json(calls.list[0]);
  for (const char* part : {"\"direction\":\"forward\"", "\"case\":\"b1 hq1 hkv1 sq8 skv8 d8 f32",
                           "\"backend\":\"math\"", "\"kernel\":\"math_", "\"isa\":", "\"workers\":",
                           "\"workspace_bytes\":", "\"ns\":", "\"operations\":2048",
                           "\"bytes\":", "\"status\":\"ok\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_FALSE(attention(context, call.request, only({kCudnn})).ok());
  EXPECT_NE(to_json(calls.list[1]).find("\"status\":\"no_backend\",\"message\":\"[plan]"),
            std::string::npos);
}

// What the function counts in is freed as soon as set_trace has returned.
TEST(Trace, MayBeSetAndEndedWhileCallsRun) {
  Context context(described_env());
  context.set_log_sink([](void*, LogLevel, std::string_view) {}, nullptr);
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      ForwardCall call(4);
      while (!stop) failures += attention(context, call.request).ok() ? 0 : 1;
    });
  }
  const auto count = [](void* user, const CallTrace& call) {
    if (!call.plan.empty()) ++*static_cast<std::atomic<int>*>(user);
  };
  int counted = 0;
  for (int round = 0; round < 200 || counted == 0; ++round) {
    auto counter = std::make_unique<std::atomic<int>>(0);
    context.set_trace(count, counter.get());
    context.set_log_level(round % 2 == 0 ? LogLevel::kTrace : LogLevel::kWarning);
    for (int i = 0; i < 1000 && *counter == 0; ++i) std::this_thread::yield();
    context.set_trace(nullptr, nullptr);
    counted += *counter;
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(counted, 0);
}

}  // namespace
}  // namespace regard::test

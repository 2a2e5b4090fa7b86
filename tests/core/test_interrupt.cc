#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "mock_backend.h"
#include "regard/interrupt.h"
#include "tests/support/executors.h"

// A call that its Interrupt ends, forward and backward, on one worker and on several.

namespace regard::test {
namespace {

constexpr std::int64_t kLongHeads = 4, kLongSeqlen = 800,
                       kLongHeadDim = 16;  // several blocks of one pass
constexpr std::size_t kElements = kLongHeads * kLongSeqlen * kLongHeadDim;
constexpr float kUnwritten = 7.0f;

/// Forward and backward of one problem; every result starts as 7.
struct PairCall {
  PairCall()
      : data(kElements),
        out(kElements, kUnwritten),
        stats(kLongHeads * kLongSeqlen * 2, kUnwritten) {
    for (std::size_t i = 0; i < kElements; ++i) data[i] = static_cast<float>(i % 13) * 0.1f;
    request.q = request.k = request.v = view(data);
    request.out = view(out);
    request.saved_stats = make_view(stats.data(), {1, kLongHeads, kLongSeqlen, 2});
    request.options.needs_grad = true;
    request.d_out = view(data);
    for (auto* gradient : {&d_q, &d_k, &d_v}) gradient->assign(kElements, kUnwritten);
    request.d_q = view(d_q);
    request.d_k = view(d_k);
    request.d_v = view(d_v);
  }
  static TensorView view(std::vector<float>& values) {
    return make_view(values.data(), {1, kLongHeads, kLongSeqlen, kLongHeadDim});
  }
  Status forward(Context& context, const Policy& policy, const Launch& launch) {
    const Status status = attention(context, request, policy, launch);
    request.saved.plan = plan(context, describe(request).value(), policy).value();
    request.saved.stats = request.saved_stats;
    request.saved.kind = SavedContext::Kind::kStats;
    return status;
  }
  std::vector<float> data, out, stats, d_q, d_k, d_v;
  AttentionGradRequest request;
};

struct Polls {
  int count = 0;
  int ends_at = 0;  // 0: never
  std::thread::id thread;
};

bool poll(void* state) noexcept {
  Polls& polls = *static_cast<Polls*>(state);
  polls.thread = std::this_thread::get_id();
  return ++polls.count == polls.ends_at;
}

class Interrupts : public ::testing::TestWithParam<BackendRef> {
 protected:
  Context context{described_env()};
  const Policy policy = only({GetParam()});
  Launch launch;
};

TEST_P(Interrupts, RequestedBeforeTheCallLeavesOutputsAlone) {
  PairCall call;
  Interrupt interrupt;
  interrupt.request();
  launch.interrupt = &interrupt;
  const Status status = call.forward(context, policy, launch);
  EXPECT_EQ(status.code(), StatusCode::kInterrupted);
  EXPECT_EQ(status.message(), "[execute] interrupted before its end; outputs hold no result");
  for (const float x : call.out) ASSERT_EQ(x, kUnwritten);
  EXPECT_EQ(attention_backward(context, call.request, {}, launch).code(), StatusCode::kInterrupted);
}

TEST_P(Interrupts, APollOnTheCallersThreadEndsTheCall) {
  PairCall call;
  ASSERT_TRUE(call.forward(context, policy, launch).ok());
  for (const bool backward : {false, true}) {
    Polls polls;
    polls.ends_at = 1;
    Interrupt interrupt(poll, &polls);
    launch.interrupt = &interrupt;
    const Status status = backward ? attention_backward(context, call.request, {}, launch)
                                   : attention(context, call.request, policy, launch);
    EXPECT_EQ(status.code(), StatusCode::kInterrupted);
    EXPECT_EQ(polls.count, 1);
    EXPECT_EQ(polls.thread, std::this_thread::get_id());
  }
}

TEST_P(Interrupts, RequestedByAnotherThreadEndsEveryWorker) {
  for (int delay = 0; delay < 20; ++delay) {
    PairCall call;
    CountingExecutor workers;
    launch.executor = &workers;
    launch.interrupt = nullptr;
    ASSERT_TRUE(call.forward(context, policy, launch).ok());
    Interrupt interrupt;
    launch.interrupt = &interrupt;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * delay));
      interrupt.request();
    });
    const Status status = attention_backward(context, call.request, {}, launch);
    other.join();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInterrupted);
  }
}

TEST_P(Interrupts, OneThatNeverEndsTheCallChangesNoBits) {
  PairCall alone, watched;
  ASSERT_TRUE(alone.forward(context, policy, launch).ok());
  ASSERT_TRUE(attention_backward(context, alone.request, {}, launch).ok());
  Polls polls;
  Interrupt interrupt(poll, &polls);
  launch.interrupt = &interrupt;
  ASSERT_TRUE(watched.forward(context, policy, launch).ok());
  ASSERT_TRUE(attention_backward(context, watched.request, {}, launch).ok());
  EXPECT_GE(polls.count, 1);
  EXPECT_EQ(alone.out, watched.out);
  EXPECT_EQ(alone.d_q, watched.d_q);
  EXPECT_EQ(alone.d_k, watched.d_k);
  EXPECT_EQ(alone.d_v, watched.d_v);
}

INSTANTIATE_TEST_SUITE_P(Backends, Interrupts, ::testing::Values(kMath, kEfficient, kFlash),
                         [](const auto& backend) { return to_string(backend.param); });

}  // namespace
}  // namespace regard::test

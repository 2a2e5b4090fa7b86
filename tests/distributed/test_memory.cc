#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "distributed/buffers.h"
#include "ranks.h"

// The memory that plans state is what calls hold.

namespace regard {
namespace {

using distributed::Algorithm;
using distributed::LayoutKind;
using test::Problem;

constexpr int kRanks = 4;

/// The most bytes of buffers that all ranks' calls hold together, forward or backward, and what the
/// plan states of the rank with most.
struct Held {
  std::int64_t bytes = 0, stated = 0;
};

Held held_by(const Problem& p, const distributed::Options& options, bool backward) {
  distributed::ThreadGroup group(kRanks);
  const auto q = distributed::make_layout(options.layout, p.sq, kRanks).value();
  const auto kv = distributed::make_layout(options.layout, p.skv, kRanks).value();
  std::vector<test::Tensors> parts;
  for (std::size_t r = 0; r < kRanks; ++r) {
    parts.push_back(test::allocate(p, distributed::rows_of(q[r]), distributed::rows_of(kv[r])));
  }
  std::vector<std::optional<distributed::Plan>> plans(kRanks);
  Held held;
  const auto run = [&](auto&& body) {
    distributed::restart_buffer_peak();
    const std::int64_t before = distributed::buffer_peak();
    test::on_ranks(kRanks, [&](int r) {
      Context context;
      check(context.set_concurrency(1));
      const Status s = body(context, group.communicator(r), static_cast<std::size_t>(r));
      EXPECT_TRUE(s.ok()) << s.to_string();
    });
    held.bytes = std::max(held.bytes, distributed::buffer_peak() - before);
  };
  run([&](Context& context, distributed::Communicator& communicator, std::size_t r) {
    AttentionGradRequest request = parts[r].request(p, false);
    request.options.needs_grad = backward;
    const auto plan = distributed::plan(context, communicator, request, options);
    if (!plan.ok()) return plan.status();
    plans[r] = *plan;
    return distributed::attention(context, communicator, *plan, request);
  });
  held.stated = plans[0]->chosen().memory;
  if (!backward) return held;
  run([&](Context& context, distributed::Communicator& communicator, std::size_t r) {
    AttentionGradRequest request = parts[r].gradient_request(p, false);
    request.options.needs_grad = true;
    return distributed::attention_backward(context, communicator, *plans[r], request);
  });
  return held;
}

class Memory : public testing::TestWithParam<Algorithm> {};

TEST_P(Memory, CallsHoldWhatThePlanStates) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{100}}) {
      for (const bool backward : {false, true}) {
        Problem p;
        p.dtype = dtype;
        p.sq = p.skv = 1024;
        p.hq = 8;
        p.hkv = 4;
        p.d = 32;
        p.dv = 24;
        if (window >= 0) p.options.window_left = p.options.window_right = window;
        if (window >= 0) p.options.diagonal = Diagonal::kTopLeft;
        auto options = test::options_of(p);
        options.algorithm = GetParam();
        options.topology = {2, 2};
        options.layout = window < 0 ? LayoutKind::kZigzag : LayoutKind::kContiguous;
        const Held held = held_by(p, options, backward);
        // Ranks hold their most at times of their own, and ranks at the ends of a window less.
        const double share =
            static_cast<double>(held.bytes) / static_cast<double>(kRanks * held.stated);
        EXPECT_LE(share, 1.01) << to_string(dtype) << " " << window << " " << backward;
        EXPECT_GE(share, 0.5) << to_string(dtype) << " " << window << " " << backward;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Memory,
                         testing::Values(Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a,
                                         Algorithm::kA2aP2p));

}  // namespace
}  // namespace regard

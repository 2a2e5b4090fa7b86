#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "conformance/problem.h"
#include "oracle/number.h"
#include "regard/attention.h"
#include "tests/support/executors.h"
#include "tests/support/tensors.h"

namespace regard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// States of f64 into f64 and, rounded, into bf16.
TEST(MergeStates, OtherTypes) {
  double values[2][2] = {{4, 0}, {8, 4}}, lses[2] = {0, std::log(3.0)}, out[2] = {}, lse = 0;
  std::vector<StateView> states;
  for (int n = 0; n < 2; ++n) {
    states.push_back({make_view(values[n], Dtype::kF64, {1, 1, 1, 2}),
                      make_view(&lses[n], Dtype::kF64, {1, 1, 1})});
  }
  ASSERT_TRUE(merge_states(states, make_view(out, Dtype::kF64, {1, 1, 1, 2}),
                           make_view(&lse, Dtype::kF64, {1, 1, 1}))
                  .ok());
  EXPECT_NEAR(out[0], 7.0, 1e-14);
  EXPECT_NEAR(out[1], 3.0, 1e-14);
  EXPECT_NEAR(lse, std::log(4.0), 1e-14);
  std::uint16_t narrow[2] = {};
  ASSERT_TRUE(merge_states(states, make_view(narrow, Dtype::kBf16, {1, 1, 1, 2})).ok());
  EXPECT_EQ(f32_from_bf16(narrow[0]), 7.0f);
  EXPECT_EQ(f32_from_bf16(narrow[1]), 3.0f);
}

// 1,000 rows of three states are several tasks; a row alone is one, on the caller's thread.
TEST(MergeStates, RowsHaveTheSameBitsOnAnyExecutor) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    constexpr std::int64_t kRows = 1000, kDim = 200;
    test::Tensors tensors;
    const auto fill = [](const TensorView& view, int seed) {
      std::int64_t n = seed;
      conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
        n = (n * 48271 + 11) % 2147483647;
        oracle::encode(static_cast<double>(n % 2000 - 1000) / 250.0, element, view.dtype);
      });
    };
    std::vector<StateView> states;
    for (int n = 0; n < 3; ++n) {
      states.push_back(
          {tensors.make(dtype, {1, 1, kRows, kDim}), tensors.make(Dtype::kF32, {1, 1, kRows})});
      fill(states.back().out, 2 * n + 1);
      fill(states.back().lse, 2 * n + 2);
    }
    const TensorView expected = tensors.make(dtype, {1, 1, kRows, kDim});
    const TensorView expected_lse = tensors.make(Dtype::kF32, {1, 1, kRows});
    for (std::int64_t row = 0; row < kRows; ++row) {
      std::vector<StateView> alone = states;
      for (StateView& state : alone) {
        state = {test::slice(state.out, 2, row, 1), test::slice(state.lse, 2, row, 1)};
      }
      check(merge_states(alone, test::slice(expected, 2, row, 1),
                         test::slice(expected_lse, 2, row, 1)));
    }
    test::CountingExecutor counting;
    test::BackwardsExecutor backwards;
    test::TeamExecutor team;
    for (Executor* executor : std::initializer_list<Executor*>{&counting, &backwards, &team}) {
      Launch launch;
      launch.executor = executor;
      const TensorView out = tensors.make(dtype, {1, 1, kRows, kDim});
      const TensorView lse = tensors.make(Dtype::kF32, {1, 1, kRows});
      check(merge_states(states, out, lse, launch));
      EXPECT_EQ(test::unequal(out, expected), "");
      EXPECT_EQ(test::unequal(lse, expected_lse), "");
    }
    EXPECT_EQ(counting.runs(), 1);
    EXPECT_EQ(counting.max_workers(), std::max(default_context().env().concurrency, 1));
  }
}

TEST(MergeStates, AContextGivesTheWorkersAndTheExecutor) {
  constexpr std::int64_t kRows = 1000, kDim = 200;
  test::Tensors tensors;
  const std::vector<StateView> states(2, {tensors.make(Dtype::kF32, {1, 1, kRows, kDim}),
                                          tensors.make(Dtype::kF32, {1, 1, kRows})});
  const TensorView out = tensors.make(Dtype::kF32, {1, 1, kRows, kDim});
  test::CountingExecutor counting;
  Context context;
  context.set_executor(&counting);
  check(context.set_concurrency(3));
  check(merge_states(context, states, out));
  EXPECT_EQ(counting.runs(), 1);
  EXPECT_EQ(counting.max_workers(), 3);
}

TEST(MergeStates, LargeAndDistantLse) {
  float values[2][2] = {{1, 2}, {3, 4}}, lses[2] = {900, -1000}, out[2] = {}, lse = 0;
  std::vector<StateView> states;
  for (int n = 0; n < 2; ++n) {
    states.push_back({make_view(values[n], Dtype::kF32, {1, 1, 1, 2}),
                      make_view(&lses[n], Dtype::kF32, {1, 1, 1})});
  }
  const TensorView to = make_view(out, Dtype::kF32, {1, 1, 1, 2});
  ASSERT_TRUE(merge_states(states, to, make_view(&lse, Dtype::kF32, {1, 1, 1})).ok());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(lse, 900.0f);
  lses[0] = lses[1] = 900;
  ASSERT_TRUE(merge_states(states, to, make_view(&lse, Dtype::kF32, {1, 1, 1})).ok());
  EXPECT_EQ(out[1], 3.0f);
  EXPECT_FLOAT_EQ(lse, 900.0f + std::log(2.0f));
  lses[1] = static_cast<float>(kInfinity);  // of a sink of +inf: it takes all the weight
  ASSERT_TRUE(merge_states(states, to, make_view(&lse, Dtype::kF32, {1, 1, 1})).ok());
  EXPECT_EQ(out[0], 3.0f);
  EXPECT_EQ(lse, static_cast<float>(kInfinity));
  lses[1] = 900;
  values[0][1] = std::nanf("");
  ASSERT_TRUE(merge_states(states, to).ok());
  EXPECT_TRUE(std::isnan(out[1]));  // a visible NaN is not hidden
}

void expect_error(const Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("[merge_states] ", 0), 0u) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

TEST(MergeStates, BadInputIsNamed) {
  float data[64] = {};
  const TensorView out = make_view(data, Dtype::kF32, {1, 1, 2, 4});
  const StateView state{make_view(data + 8, Dtype::kF32, {1, 1, 2, 4}),
                        make_view(data + 16, Dtype::kF32, {1, 1, 2})};
  EXPECT_TRUE(merge_states({state}, out).ok());
  expect_error(merge_states({}, out), "states");
  StateView bad = state;
  bad.out.shape[3] = 3;
  expect_error(merge_states({state, bad}, out), "states[1].out");
  bad = state;
  bad.lse.dtype = Dtype::kBf16;
  expect_error(merge_states({bad}, out), "states[0].lse");
  bad = state;
  bad.lse = TensorView{};
  expect_error(merge_states({bad}, out), "states[0].lse");
  bad = state;
  bad.out.data = data + 4;  // shifted against out
  expect_error(merge_states({bad}, out), "must not overlap");
  bad = state;
  bad.lse.data = data + 2;  // an lse inside out
  expect_error(merge_states({bad}, out), "must not overlap");
  expect_error(merge_states({state}, out, make_view(data + 3, Dtype::kF32, {1, 1, 2})), "overlap");
  TensorView itself = out;
  itself.strides[2] = 0;
  expect_error(merge_states({state}, itself), "itself");
  expect_error(merge_states({state}, make_view(data, Dtype::kI32, {1, 1, 2, 4})), "out");
  TensorView cuda = out;
  cuda.device.type = DeviceType::kCuda;
  StateView on_cuda = state;
  on_cuda.out.device = on_cuda.lse.device = cuda.device;
  expect_error(merge_states({on_cuda}, cuda), "cpu");
}

}  // namespace
}  // namespace regard

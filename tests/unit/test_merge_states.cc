#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention_case.h"
#include "backends/math/backend.h"
#include "regard/request.h"

namespace regard {
namespace {

using test::AttentionCase;
using test::get;
using test::put;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// MATH's results over keys [begin, end) of a case, and over all of them.
struct Parts {
  explicit Parts(Dtype dtype, std::vector<std::int64_t> bounds)
      : c({2, 3, 3, 5, bounds.back(), 8, 6}, dtype, 3) {
    const Dtype out = dtype == Dtype::kF64 ? dtype : Dtype::kF32;
    run({0, bounds.back()}, out, &whole);
    for (std::size_t n = 0; n + 1 < bounds.size(); ++n) {
      states.emplace_back();
      run({bounds[n], bounds[n + 1]}, out, &states.back());
    }
  }

  void run(std::pair<std::int64_t, std::int64_t> keys, Dtype out, StateView* state) {
    AttentionRequest r = c.request;
    const auto part = [&](TensorView& view) {
      view.data =
          static_cast<char*>(view.data) + keys.first * view.strides[2] * size_of(view.dtype);
      view.shape[2] = keys.second - keys.first;
    };
    part(r.k);
    part(r.v);
    r.out = state->out = c.tensor(out, {2, 3, 5, 6}, true);
    r.lse = state->lse = c.tensor(out, {2, 3, 5}, false);
    test::run_backend(math::backend(), r);
  }

  AttentionCase c;
  StateView whole;
  std::vector<StateView> states;
};

void expect_near(const TensorView& actual, const TensorView& expected, double tolerance) {
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t s = 0; s < 5; ++s) {
        const std::int64_t dims = actual.rank == 4 ? actual.shape[3] : 1;
        for (std::int64_t d = 0; d < dims; ++d) {
          ASSERT_NEAR(get(actual, b, h, s, d), get(expected, b, h, s, d), tolerance);
        }
      }
    }
  }
}

TEST(MergeStates, PartsMakeTheWhole) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBf16}) {
    Parts p(dtype, {0, 7, 7, 30, 41});  // one part has no keys
    const Dtype wide = dtype == Dtype::kF64 ? dtype : Dtype::kF32;
    const TensorView out = p.c.tensor(wide, {2, 3, 5, 6}, true);
    const TensorView lse = p.c.tensor(wide, {2, 3, 5}, false);
    ASSERT_TRUE(merge_states(p.states, out, lse).ok());
    const double tolerance = dtype == Dtype::kF64 ? 1e-14 : 2e-6;
    expect_near(out, p.whole.out, tolerance);
    expect_near(lse, p.whole.lse, tolerance);
    // lse may be absent; bf16 output is the same, rounded.
    const TensorView narrow = p.c.tensor(Dtype::kBf16, {2, 3, 5, 6}, true);
    ASSERT_TRUE(merge_states(p.states, narrow).ok());
    expect_near(narrow, p.whole.out, 0.01);
  }
}

TEST(MergeStates, OntoItsFirstInput) {
  Parts p(Dtype::kF32, {0, 20, 41});
  ASSERT_TRUE(merge_states(p.states, p.states[0].out, p.states[0].lse).ok());
  expect_near(p.states[0].out, p.whole.out, 2e-6);
  expect_near(p.states[0].lse, p.whole.lse, 2e-6);
}

TEST(MergeStates, EmptyPartsContributeNothing) {
  Parts p(Dtype::kF32, {0, 20, 41});
  const TensorView first = p.states[0].out, lse = p.states[1].lse;
  std::vector<double> before;
  for (std::int64_t d = 0; d < 6; ++d) {
    before.push_back(get(first, 1, 2, 3, d));
    put(p.states[1].out, std::nan(""), 1, 2, 3, d);  // never read
    put(p.states[0].out, std::nan(""), 0, 0, 0, d);
    put(p.states[1].out, kInfinity, 0, 0, 0, d);
  }
  put(lse, -kInfinity, 1, 2, 3);
  put(p.states[0].lse, -kInfinity, 0, 0, 0);
  put(p.states[1].lse, -kInfinity, 0, 0, 0);
  const TensorView out = p.c.tensor(Dtype::kF32, {2, 3, 5, 6}, true);
  const TensorView out_lse = p.c.tensor(Dtype::kF32, {2, 3, 5}, false);
  ASSERT_TRUE(merge_states(p.states, out, out_lse).ok());
  for (std::int64_t d = 0; d < 6; ++d) {
    EXPECT_EQ(get(out, 1, 2, 3, d), before[static_cast<std::size_t>(d)]);
    EXPECT_EQ(get(out, 0, 0, 0, d), 0.0);
  }
  EXPECT_EQ(get(out_lse, 0, 0, 0), -kInfinity);
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

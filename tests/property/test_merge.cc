#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "regard/context.h"
#include "tests/support/tensors.h"

// merge_states by itself: its arithmetic with numbers typed in, and the rules of empty splits.

namespace regard {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Merge : public testing::Test {
 protected:
  /// One row: out [1,1,1,2] and lse [1,1,1].
  StateView state(float a, float b, float lse) {
    const StateView view{tensors_.make(Dtype::kF32, {1, 1, 1, 2}),
                         tensors_.make(Dtype::kF32, {1, 1, 1})};
    float* out = static_cast<float*>(view.out.data);
    out[0] = a;
    out[1] = b;
    *static_cast<float*>(view.lse.data) = lse;
    return view;
  }
  static std::vector<float> row(const StateView& view) {
    const float* out = static_cast<const float*>(view.out.data);
    return {out[0], out[1], *static_cast<const float*>(view.lse.data)};
  }
  StateView merged(const std::vector<StateView>& parts) {
    const StateView to = state(-7, -7, -7);
    const Status status = merge_states(parts, to.out, to.lse);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return to;
  }

  test::Tensors tensors_;
};

TEST_F(Merge, WeighsByExpOfLse) {
  // Weights 1 and 3: (1 * 4 + 3 * 8) / 4 = 7, lse ln 4.
  const std::vector<float> actual = row(merged({state(4, 0, 0), state(8, 4, std::log(3.0f))}));
  EXPECT_NEAR(actual[0], 7.0, 2e-6);
  EXPECT_NEAR(actual[1], 3.0, 2e-6);
  EXPECT_NEAR(actual[2], 1.3862944, 2e-7);
}

TEST_F(Merge, EmptySplitsAddNothing) {
  EXPECT_EQ(row(merged({state(kNan, kInf, -kInf), state(5, 6, 1.5)})),
            (std::vector<float>{5, 6, 1.5}));
  EXPECT_EQ(row(merged({state(5, 6, 1.5), state(kNan, kInf, -kInf)})),
            (std::vector<float>{5, 6, 1.5}));
  EXPECT_EQ(row(merged({state(kNan, 1, -kInf), state(2, kInf, -kInf)})),
            (std::vector<float>{0, 0, -kInf}));
}

TEST_F(Merge, LargeLsesDoNotOverflow) {
  EXPECT_EQ(row(merged({state(1, 2, 3e38f), state(3, 4, -3e38f)})),
            (std::vector<float>{1, 2, 3e38f}));
  const std::vector<float> even = row(merged({state(1, 2, 1e4f), state(3, 4, 1e4f)}));
  EXPECT_NEAR(even[0], 2.0, 1e-6);
  EXPECT_NEAR(even[2], 1e4 + 0.6931472, 1e-3);
}

TEST_F(Merge, NanOfAVisibleSplitShows) {
  const std::vector<float> actual = row(merged({state(kNan, 2, 0), state(3, 4, 0)}));
  EXPECT_TRUE(std::isnan(actual[0]));
  EXPECT_NEAR(actual[1], 3.0, 1e-6);
}

TEST_F(Merge, TheOutputMayBeAnInput) {
  const StateView a = state(4, 0, 0), b = state(8, 4, std::log(3.0f));
  const std::vector<float> expected = row(merged({a, b}));
  const Status status = merge_states({a, b}, a.out, a.lse);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(row(a), expected);
}

TEST_F(Merge, LseMayBeAbsent) {
  const StateView a = state(4, 0, 0), b = state(8, 4, std::log(3.0f)), to = state(0, 0, -7);
  ASSERT_TRUE(merge_states({a, b}, to.out).ok());
  EXPECT_NEAR(row(to)[0], 7.0, 2e-6);
  EXPECT_EQ(row(to)[2], -7.0f);
}

TEST_F(Merge, ShapesMustAgree) {
  const StateView a = state(1, 2, 0), to = state(0, 0, 0);
  StateView wrong = state(1, 2, 0);
  wrong.out.shape[3] = 1;
  const Status status = merge_states({a, wrong}, to.out, to.lse);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_FALSE(merge_states({}, to.out, to.lse).ok() && row(to)[2] != -kInf);
}

}  // namespace
}  // namespace regard

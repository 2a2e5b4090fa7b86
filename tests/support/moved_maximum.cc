#include "tests/support/moved_maximum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "oracle/number.h"
#include "regard/attention.h"

namespace regard::test {
namespace {

constexpr std::int64_t kKeys = 3, kDim = 8;

/// bf16 rows of numbers between -1 and 1.
std::vector<std::uint16_t> rows_of(std::int64_t rows, double seed) {
  std::vector<std::uint16_t> made(static_cast<std::size_t>(rows * kDim));
  for (std::size_t n = 0; n < made.size(); ++n) {
    oracle::encode(std::sin(seed + 1.7 * static_cast<double>(n)), &made[n], Dtype::kBf16);
  }
  return made;
}

}  // namespace

void expect_moved_maximum_moves_as_much(Context& context, const BackendRef& backend) {
  std::vector<std::uint16_t> q(kDim), k = rows_of(kKeys, 1.0), v = rows_of(kKeys, 2.0), out(kDim),
                                      d_out = rows_of(1, 3.0);
  std::vector<float> bias{0.0f, -7.0f, -9.0f}, stats(2), before(kKeys), after(kKeys);
  AttentionGradRequest request;
  request.q = make_view(q.data(), Dtype::kBf16, {1, 1, 1, kDim});
  request.k = make_view(k.data(), Dtype::kBf16, {1, 1, kKeys, kDim});
  request.v = make_view(v.data(), Dtype::kBf16, {1, 1, kKeys, kDim});
  request.out = make_view(out.data(), Dtype::kBf16, {1, 1, 1, kDim});
  request.attn_bias = make_view(bias.data(), {1, 1, 1, kKeys});
  request.saved_stats = make_view(stats.data(), {1, 1, 1, 2});
  request.saved = {request.saved_stats, SavedContext::Kind::kStats, 0, 0, {}};
  request.d_out = make_view(d_out.data(), Dtype::kBf16, {1, 1, 1, kDim});
  request.options.needs_grad = true;
  Policy policy;
  policy.only = std::vector<BackendRef>{backend};
  const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
  ASSERT_TRUE(attention(context, request).ok());
  request.d_bias = make_view(before.data(), {1, 1, 1, kKeys});
  ASSERT_TRUE(attention_backward(context, request).ok());
  constexpr float kMoved = 1e-3f;
  stats[0] += kMoved;
  request.d_bias = make_view(after.data(), {1, 1, 1, kKeys});
  ASSERT_TRUE(attention_backward(context, request).ok());
  for (std::size_t j = 0; j < before.size(); ++j) {
    EXPECT_NE(before[j], 0.0f);
    EXPECT_NEAR(after[j], before[j], 2 * kMoved * std::fabs(before[j])) << "key " << j;
  }
}

}  // namespace regard::test

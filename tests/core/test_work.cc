#include "regard/work.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/described_request.h"

namespace regard {
namespace {

using namespace described;

Work forward_of(const AttentionRequest& request) {
  const Expected<AttentionParams> params = describe(request);
  EXPECT_TRUE(params.ok()) << params.status().message();
  return params ? forward_work(*params, request) : Work{};
}

constexpr double kQ = kB * kHq * kSq * kD * 4, kOut = kB * kHq * kSq * kDv * 4;
constexpr double kOneKey = kHkv * (kD + kDv) * 4;  // of k and v, all heads
constexpr double kPair = 2.0 * kHq * (kD + kDv);   // operations of all heads

TEST(Work, WholeSequences) {
  const Work work = forward_of(good_request());
  EXPECT_EQ(work.operations, kB * kSq * kSkv * kPair);
  EXPECT_EQ(work.bytes, kQ + kOut + kB * kSkv * kOneKey);
}

TEST(Work, CausalRowsSeeATriangle) {
  AttentionRequest request = good_request();
  request.options.is_causal = true;
  request.options.diagonal = Diagonal::kTopLeft;
  Work work = forward_of(request);
  EXPECT_EQ(work.operations, kB * (1 + 2 + 3 + 4 + 5 + 6) * kPair);
  EXPECT_EQ(work.bytes, kQ + kOut + kB * kSq * kOneKey);  // the last four keys are unseen
  request.options.diagonal = Diagonal::kBottomRight;
  work = forward_of(request);
  EXPECT_EQ(work.operations, kB * (5 + 6 + 7 + 8 + 9 + 10) * kPair);
  EXPECT_EQ(work.bytes, kQ + kOut + kB * kSkv * kOneKey);
}

TEST(Work, WindowsAndOffsets) {
  AttentionRequest request = good_request();
  request.options.window_left = 2;
  request.options.window_right = 0;
  request.options.diagonal = Diagonal::kOffset;
  request.diagonal_offset = 3;  // row i sees keys i + 1 .. i + 3
  Work work = forward_of(request);
  EXPECT_EQ(work.operations, kB * kSq * 3 * kPair);
  EXPECT_EQ(work.bytes, kQ + kOut + kB * 8 * kOneKey);
  request.diagonal_offset = kMax;  // beyond every key
  work = forward_of(request);
  EXPECT_EQ(work.operations, 0.0);
  EXPECT_EQ(work.bytes, kQ + kOut);
}

TEST(Work, LengthsOfSequences) {
  AttentionRequest request = good_request();
  std::int32_t lens_q[] = {2, 0}, lens_kv[] = {7, 5};
  request.seqlens_q = make_view(lens_q, Dtype::kI32, {kB});
  request.seqlens_kv = make_view(lens_kv, Dtype::kI32, {kB});
  Work work = forward_of(request);
  EXPECT_EQ(work.operations, 2 * 7 * kPair);
  EXPECT_EQ(work.bytes, kQ + kOut + 7 * kOneKey + 2 * kB * 4);

  // Lengths of a device are not read.
  AttentionParams params = describe(request).value();
  params.device.type = DeviceType::kCuda;
  request.seqlens_q.data = request.seqlens_kv.data = nullptr;
  work = forward_work(params, request);
  EXPECT_EQ(work.operations, kB * kSq * kSkv * kPair);
}

TEST(Work, PackedSequences) {
  AttentionRequest request;
  request.q = tensor(0, Dtype::kF32, {1, kHq, 7, kD});
  request.k = tensor(1, Dtype::kF32, {1, kHkv, 9, kD});
  request.v = tensor(2, Dtype::kF32, {1, kHkv, 9, kDv});
  request.out = tensor(3, Dtype::kF32, {1, kHq, 7, kDv});
  std::int32_t starts_q[] = {0, 2, 7}, starts_kv[] = {0, 3, 9};
  request.cu_seqlens_q = make_view(starts_q, Dtype::kI32, {3});
  request.cu_seqlens_kv = make_view(starts_kv, Dtype::kI32, {3});
  request.max_seqlen_q = 5;
  request.max_seqlen_kv = 6;
  const Work work = forward_of(request);
  EXPECT_EQ(work.operations, (2 * 3 + 5 * 6) * kPair);
  EXPECT_EQ(work.bytes, 7 * kHq * (kD + kDv) * 4 + 9 * kOneKey + 2 * 3 * 4);
}

TEST(Work, OtherTensorsCountOnce) {
  AttentionRequest request = good_request();
  const double plain = forward_of(request).bytes;
  request.attn_bias = tensor(8, Dtype::kF32, {1, kHq, 1, kSkv});
  request.lse = tensor(4, Dtype::kF32, {kB, kHq, kSq});
  EXPECT_EQ(forward_of(request).bytes, plain + kHq * kSkv * 4 + kB * kHq * kSq * 4);
  request.attn_bias =
      make_view(arena(0), Dtype::kF32, {kB, kHq, kSq, kSkv}, {0, kSkv, 0, 1});  // an expanded one
  EXPECT_EQ(forward_of(request).bytes, plain + kHq * kSkv * 4 + kB * kHq * kSq * 4);
}

TEST(Work, Backward) {
  AttentionRequest request = good_request();
  GradBuffers gradients;
  gradients.d_out = tensor(4, Dtype::kF32, {kB, kHq, kSq, kDv});
  gradients.saved.stats = tensor(5, Dtype::kF32, {kB, kHq, kSq, 2});
  gradients.d_k = tensor(6, Dtype::kF32, {kB, kHkv, kSkv, kD});
  const Work work = backward_work(describe(request).value(), request, gradients);
  EXPECT_EQ(work.operations, kB * kSq * kSkv * 2.0 * kHq * (3 * kD + 2 * kDv));
  EXPECT_EQ(work.bytes, kQ + 2 * kOut + kB * kSkv * kOneKey + kB * kHq * kSq * 2 * 4 +
                            kB * kHkv * kSkv * kD * 4);
}

TEST(Work, NothingToCompute) {
  AttentionParams params;
  params.batch = 0;
  params.seqlen_q = params.seqlen_kv = std::int64_t{1} << 60;
  EXPECT_EQ(forward_work(params, {}).operations, 0.0);
}

}  // namespace
}  // namespace regard

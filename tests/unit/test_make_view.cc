#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/describe/describe_gradients.h"
#include "regard/dropout.h"
#include "regard/dtype.h"
#include "tests/unit/described_request.h"

// A type of a program's own that holds the bits of bf16.
struct TestBf16 {
  std::uint16_t bits;
};
template <>
inline constexpr std::optional<regard::Dtype> regard::dtype_of<TestBf16> = regard::Dtype::kBf16;
namespace regard {
namespace {

using described::good_request;
using described::kB;
using described::kD;
using described::kDv;
using described::kHkv;
using described::kHq;
using described::kSkv;
using described::kSq;

template <class T>
Dtype made_dtype() {
  T* const none = nullptr;
  return make_view(none, {0}).dtype;
}

TEST(MakeView, TheElementTypeIsTheDtype) {
  EXPECT_EQ(made_dtype<double>(), Dtype::kF64);
  EXPECT_EQ(made_dtype<float>(), Dtype::kF32);
  EXPECT_EQ(made_dtype<TestBf16>(), Dtype::kBf16);
  EXPECT_EQ(made_dtype<const TestBf16>(), Dtype::kBf16);
  EXPECT_EQ(made_dtype<std::int8_t>(), Dtype::kI8);
  EXPECT_EQ(made_dtype<std::uint8_t>(), Dtype::kU8);
  EXPECT_EQ(made_dtype<bool>(), Dtype::kBool);
  EXPECT_EQ(made_dtype<std::int32_t>(), Dtype::kI32);
  EXPECT_EQ(made_dtype<long>(), Dtype::kI64);  // both are 64 bits here, and two types
  EXPECT_EQ(made_dtype<long long>(), Dtype::kI64);
}

// What must not compile.
template <class T>
concept Viewable = requires(T* data) {
  make_view(data, {1, 2});
};
template <class T>
concept ViewableWithTooFewStrides = requires(T* data) {
  make_view(data, {1, 2}, {1});
};

TEST(MakeView, TheCompilerRefusesOtherTypesAndLists) {
  static_assert(Viewable<float> && Viewable<const float>);
  static_assert(!Viewable<std::uint16_t>, "bits of bf16 or f16: ambiguous");
  static_assert(!Viewable<char> && !Viewable<unsigned> && !Viewable<void> && !Viewable<float*>);
  static_assert(!ViewableWithTooFewStrides<float>);
}

TEST(MakeView, IsDenseOrHasTheStridesGiven) {
  std::vector<float> data(24);
  const TensorView dense = make_view(data.data(), {2, 3, 4});
  EXPECT_EQ(to_string(dense), "f32[2,3,4] strides (12,4,1)");
  EXPECT_EQ(dense.data, data.data());
  EXPECT_EQ(to_string(make_view<float>(data.data(), {2, 3}, {0, 5})), "f32[2,3] strides (0,5)");
  const std::int64_t shape[] = {4, 0, 6};
  EXPECT_EQ(to_string(make_view(data.data(), shape)), "f32[4,0,6] strides (6,6,1)");
  EXPECT_EQ(to_string(make_view(data.data(), Dtype::kI32, {2, 3})), "i32[2,3] strides (3,1)");
}

TEST(MakeView, ConstMemoryIsReadOnly) {
  std::vector<float> data(6);
  const std::vector<float>& same = data;
  EXPECT_FALSE(make_view(data.data(), {6}).read_only);
  EXPECT_TRUE(make_view(same.data(), {6}).read_only);
  EXPECT_TRUE(make_view<const float>(data.data(), {6}).read_only);
  EXPECT_FALSE(make_view(data.data(), Dtype::kF32, {6}).read_only);
  EXPECT_TRUE(make_view(same.data(), Dtype::kF32, {6}, {1}).read_only);
}

std::string refusal(TensorView AttentionRequest::*view) {
  AttentionRequest request = described::full_request();
  (request.*view).read_only = true;
  return describe(request).status().message();
}

TEST(ReadOnly, EveryOutputOfAForwardIsRefusedByName) {
  const std::string expected = " is read-only; the call writes it and expects writable memory";
  EXPECT_EQ(refusal(&AttentionRequest::out),
            "[describe] out (f32[2,8,6,32] strides (1536,192,32,1))" + expected);
  for (const auto& [view, name] : {std::pair{&AttentionRequest::lse, "lse"},
                                   std::pair{&AttentionRequest::saved_stats, "saved_stats"},
                                   std::pair{&AttentionRequest::scores_out, "scores_out"}}) {
    const std::string message = refusal(view);
    EXPECT_NE(message.find(std::string("[describe] ") + name + " ("), std::string::npos) << message;
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

TEST(ReadOnly, InputsMayBe) {
  AttentionRequest request = described::full_request();
  for (TensorView AttentionRequest::*view :
       {&AttentionRequest::q, &AttentionRequest::k, &AttentionRequest::v,
        &AttentionRequest::attn_mask, &AttentionRequest::attn_bias, &AttentionRequest::sinks,
        &AttentionRequest::seqlens_kv}) {
    (request.*view).read_only = true;
  }
  const Expected<AttentionParams> params = describe(request);
  EXPECT_TRUE(params.ok()) << params.status().to_string();
}

// A cache that the call appends to is written.
TEST(ReadOnly, ACacheThatIsAppendedToIsAnOutput) {
  AttentionRequest request = good_request();
  request.k_new = described::tensor(4, Dtype::kF32, {kB, kHkv, 2, kD});
  request.v_new = described::tensor(5, Dtype::kF32, {kB, kHkv, 2, kDv});
  request.seqlens_kv = described::tensor(6, Dtype::kI32, {kB});
  EXPECT_TRUE(describe(request).ok()) << describe(request).status().to_string();
  request.v.read_only = true;
  EXPECT_NE(describe(request).status().message().find("[describe] v ("), std::string::npos)
      << describe(request).status().to_string();
}

TEST(ReadOnly, GradientsAreOutputsAndWhatTheForwardWroteIsNot) {
  AttentionRequest request = good_request();
  request.saved_stats = described::tensor(4, Dtype::kF32, {kB, kHq, kSq, 2});
  request.out.read_only = true;  // of a backward it is an input
  AttentionGradRequest back{request, {}};
  back.saved.stats = request.saved_stats;
  back.saved.stats.read_only = true;
  back.saved.kind = SavedContext::Kind::kStats;
  back.d_out = described::tensor(5, Dtype::kF32, {kB, kHq, kSq, kDv});
  back.d_v = described::tensor(6, Dtype::kF32, {kB, kHkv, kSkv, kDv});
  back.options.needs_grad = true;
  const Expected<AttentionParams> params = describe(good_request());
  ASSERT_TRUE(params.ok());
  EXPECT_TRUE(check_gradients(back, back, *params, "test").ok())
      << check_gradients(back, back, *params, "test").to_string();
  back.d_v.read_only = true;
  EXPECT_EQ(check_gradients(back, back, *params, "test").message(),
            "[test] d_v (f32[2,4,10,32] strides (1280,320,32,1)) is read-only; the call writes it "
            "and expects writable memory");
}

TEST(ReadOnly, MergedStatesAndDropoutMasksAreOutputs) {
  std::vector<float> data(8), out(8), lse(4);
  const StateView state{make_view(std::as_const(data).data(), {1, 1, 4, 2}),
                        make_view(std::as_const(lse).data(), {1, 1, 4})};
  EXPECT_TRUE(merge_states({state}, make_view(out.data(), {1, 1, 4, 2})).ok());
  EXPECT_NE(merge_states({state}, make_view(std::as_const(out).data(), {1, 1, 4, 2}))
                .message()
                .find("[merge_states] out ("),
            std::string::npos);
  EXPECT_NE(merge_states({state}, make_view(out.data(), {1, 1, 4, 2}), state.lse)
                .message()
                .find("[merge_states] lse ("),
            std::string::npos);

  AttentionRequest request = good_request();
  request.options.dropout_p = 0.5;
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(kB * kHq * kSq * kSkv));
  const AttentionParams params = describe(request).value();
  EXPECT_TRUE(dropout_mask(params, request, make_view(kept.data(), {kB, kHq, kSq, kSkv})).ok());
  const TensorView read_only = make_view(std::as_const(kept).data(), {kB, kHq, kSq, kSkv});
  EXPECT_NE(dropout_mask(params, request, read_only).message().find("[dropout_mask] kept ("),
            std::string::npos);
}

}  // namespace
}  // namespace regard

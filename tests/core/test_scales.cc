#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "conformance/problem.h"
#include "regard/attention.h"
#include "tests/support/executors.h"
#include "tests/support/tensors.h"

// Scales of k and v: what is refused, before anything is written.

namespace regard {
namespace {

using conformance::Problem;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Problem dense(const char* text) {
  return conformance::make_problem(parse_case(text).value(), {.dense = true});
}

TEST(ScalesData, IsCheckedBeforeAnythingIsWritten) {
  struct Bad {
    const char* text;
    TensorView Buffers::*tensor;
    std::int64_t place;
    float value;
    const char* fragment;
  };
  constexpr const char* kRows = "b2 hq2 sq2 skv24 d8 f32 kv=i8 scales=token lens_kv=20,3 append=2";
  constexpr const char* kGroups = "b2 hq2 sq2 skv24 d40 f32 kv=u4 lens_kv=20,3 append=2";
  constexpr const char* kPages =
      "b1 hq1 sq2 skv24 d8 f32 kv=i8 scales=all paged page_size=8 lens_kv=20 append=2";
  const Bad bad[] = {
      {kRows, &Buffers::scales_k, 19, 0.0f, "scales_k[0,0,19] (0), expected finite and more than"},
      {kRows, &Buffers::scales_k, 24 + 2, -1.0f, "scales_k[0,1,2] (-1)"},
      {kRows, &Buffers::scales_v, 48 + 24, kNaN, "scales_v[1,1,0] (nan)"},
      {kRows, &Buffers::scales_v, 0, kInfinity, "scales_v[0,0,0] (inf)"},
      {kRows, &Buffers::k_new, 17, kNaN, "k_new[0,1,0,1] (nan), expected finite: the row is quant"},
      {kRows, &Buffers::v_new, 40, kInfinity, "v_new[1,0,1,0] (inf), expected finite"},
      {kPages, &Buffers::scales_k, 0, kNaN, "scales_k["},
      {kGroups, &Buffers::scales_k, 19 * 4, 0.0f, "scales_k[0,0,19,0] (0), expected finite and mo"},
      {kGroups, &Buffers::scales_k, (24 + 2) * 4 + 2, -1.0f, "scales_k[0,1,2,2] (-1)"},
      {kGroups, &Buffers::scales_v, 48 * 4 + 3, -kInfinity,
       "scales_v[1,0,0,3] (-inf), expected finite: it is the minimum of a group"},
      {kGroups, &Buffers::scales_v, 7 * 4 + 1, kNaN, "scales_v[0,0,7,1] (nan)"},
      {kGroups, &Buffers::k_new, 81, kNaN, "k_new[0,1,0,1] (nan), expected finite: the row is qu"},
      {kGroups, &Buffers::v_new, 161, kInfinity, "v_new[1,0,0,1] (inf), expected finite"},
      {"b1 hq1 sq1 skv8 d8 f32 kv=i8 scales=all channel_scales append lens_kv=3",
       &Buffers::channel_scales_k, 5, 0.0f, "channel_scales_k[0,5] (0)"},
      {"b1 hq2 sq3 skv8 d40 f8e4m3 scales=1x32 scales_q", &Buffers::scales_k, 3 * 2 + 1, 0.0f,
       "scales_k[0,0,3,1] (0), expected finite and more than"},
      {"b1 hq2 sq3 skv8 d40 f8e4m3 scales=1x32 scales_q", &Buffers::scales_q, (3 + 2) * 2, kNaN,
       "scales_q[0,1,2,0] (nan), expected finite and more than"},
      {"b1 hq2 sq3 skv200 d8 f8e4m3 scales=128x128", &Buffers::scales_v, 3, -1.0f,
       "scales_v[0,1,1,0] (-1), expected finite and more than"},
      {"b1 hq2 sq3 skv8 d40 f8e4m3 scales_q", &Buffers::scales_q, 4, 0.0f,
       "scales_q[0,1,1] (0), expected finite and more than"},
  };
  for (const Bad& b : bad) {
    Context context;
    Problem problem = dense(b.text);
    problem.reset_outputs();
    const AttentionRequest& r = problem.request();
    static_cast<float*>((r.*b.tensor).data)[b.place] = b.value;
    const std::vector<unsigned char> out = problem.output_bytes();
    const std::vector<char> k = test::bytes_of(r.k), v = test::bytes_of(r.v),
                            scales = test::bytes_of(r.scales_v);
    const Status status = attention(context, r);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(b.fragment), std::string::npos) << status.message();
    EXPECT_EQ(problem.output_bytes(), out) << b.fragment;
    EXPECT_EQ(test::bytes_of(r.k), k) << b.fragment;
    EXPECT_EQ(test::bytes_of(r.v), v) << b.fragment;
    EXPECT_EQ(test::bytes_of(r.scales_v), scales) << b.fragment;
  }
}

// So many that workers share them, in turns of 512 rows: of these the first and the last are one
// worker's, that between them the other's.
TEST(ScalesData, OfALongCacheAreCheckedByEveryWorker) {
  for (const std::int64_t row : {3, 700, 2499}) {
    Context context;
    ASSERT_TRUE(context.set_concurrency(2).ok());
    test::CountingExecutor executor;
    context.set_executor(&executor);
    Problem problem = dense("b2 hq4 sq1 skv2500 d128 bf16 kv=u4");
    problem.reset_outputs();
    const AttentionRequest& r = problem.request();
    const std::vector<unsigned char> out = problem.output_bytes();
    auto* const scales = static_cast<float*>(r.scales_v.data);
    float* const bad = scales + ((4 + 3) * 2500 + row) * 8 + 2;
    const float good = std::exchange(*bad, 0.0f);
    const Status status = attention(context, r);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    const std::string place = "scales_v[1,3," + std::to_string(row) + ",2] (0), expected finite";
    EXPECT_NE(status.message().find(place), std::string::npos) << status.message();
    EXPECT_EQ(problem.output_bytes(), out);
    EXPECT_EQ(executor.runs(), 2) << "scales of k, then of v";
    EXPECT_EQ(executor.max_workers(), 2);
    *bad = good;
    EXPECT_TRUE(attention(context, r).ok());
  }
}

// Scales of blocks and of q: which there may be, by name.
TEST(ScalesLayout, IsRefusedByName) {
  struct Refused {
    const char* text;
    void (*change)(AttentionRequest&);
    const char* fragment;
  };
  const Refused refused[] = {
      {"b1 hq1 sq3 skv8 d40 f8e4m3 scales=1x32 scales_q",
       [](AttentionRequest& r) { r.options.scale_layout = ScaleLayout::kRows; },
       "shape of scales_k ([1,1,8,2]) must be "},
      {"b1 hq1 sq3 skv8 d40 f8e4m3 scales=token",
       [](AttentionRequest& r) { r.options.scale_layout = ScaleLayout::k1x32; },
       "rank of scales_k (3) must be 4, with a scale for each block, where scale_layout is 1x32"},
      {"b1 hq1 sq3 skv8 d40 f8e4m3 scales=1x32",
       [](AttentionRequest& r) { r.options.scale_layout = ScaleLayout::k1x128; },
       "shape of scales_k ([1,1,8,2])"},
      {"b1 hq1 sq3 skv8 d40 f8e4m3",
       [](AttentionRequest& r) { r.options.scale_layout = ScaleLayout::k1x32; },
       "scale_layout (1x32) must be left out without scales_q, scales_k and scales_v"},
      {"b1 hq1 sq3 skv8 d40 bf16",
       [](AttentionRequest& r) {
         static float scales[3];
         r.scales_q = make_view(scales, {1, 1, 3});
       },
       "scales_q (given) must be left out where q is bf16, not f8e4m3 or f8e5m2"},
      {"b1 hq1 sq3 skv8 d40 f8e4m3 scales=128x128",
       [](AttentionRequest& r) {
         r.options.is_causal = true;
         r.options.diagonal = Diagonal::kTopLeft;
       },
       "scale_layout (128x128) must be 1x128 or 1x32 with a causal mask, or allow_future_scales"},
      {"b1 hq1 sq3 skv8 d40 f8e4m3 scales_q",
       [](AttentionRequest& r) { r.options.hadamard = true; }, "head_dim_qk (40) must be a power"},
      {"b1 hq1 sq3 skv8 d32 f8e4m3 scales_q",
       [](AttentionRequest& r) { r.options.hadamard = true; },
       "scales_q (present) must be left out with rotary embedding or hadamard"},
  };
  for (const Refused& x : refused) {
    Problem problem = dense(x.text);
    AttentionRequest request = problem.request();
    x.change(request);
    const Expected<AttentionParams> params = describe(request);
    ASSERT_FALSE(params.ok()) << x.fragment;
    EXPECT_NE(params.status().message().find(x.fragment), std::string::npos)
        << params.status().message();
  }
}

// With a mask that hides nothing later, or with leave, blocks of rows are as good as any.
TEST(ScalesLayout, OfRowsIsTakenWithLeave) {
  for (const bool causal : {false, true}) {
    Problem problem = dense("b1 hq1 sq3 skv8 d40 f8e4m3 scales=128x128");
    AttentionRequest request = problem.request();
    request.options.is_causal = causal;
    request.options.diagonal = Diagonal::kTopLeft;
    request.options.allow_future_scales = true;
    const Expected<AttentionParams> params = describe(request);
    ASSERT_TRUE(params.ok()) << params.status().message();
    EXPECT_TRUE(params->features.has(Feature::kFutureScales));
    EXPECT_TRUE(params->features.has(Feature::kScales128x128));
  }
}

TEST(ScalesData, OfAnEntryThatIsNotThereIsNotRead) {
  Context context;
  Problem problem = dense("b2 hq2 sq2 skv24 d8 f32 kv=i8 scales=token cache_batch_idx");
  const AttentionRequest& r = problem.request();
  for (const std::int32_t entry : {2'000'000'000, -1, 4}) {
    static_cast<std::int32_t*>(r.cache_batch_idx.data)[1] = entry;
    const std::string message = attention(context, r).message();
    EXPECT_NE(message.find("cache_batch_idx[1] ("), std::string::npos) << message;
  }
}

// More than a block of scales: every place is looked at.
TEST(ScalesData, AreCheckedAtEveryPlace) {
  Context context;
  Problem problem = dense("b1 hq1 sq1 skv200 d8 f32 kv=i8 scales=token");
  const AttentionRequest& r = problem.request();
  auto* const scales = static_cast<float*>(r.scales_v.data);
  for (const std::int64_t place : {0, 1, 63, 64, 127, 128, 191, 192, 199}) {
    const float before = std::exchange(scales[place], 0.0f);
    const std::string message = attention(context, r).message();
    EXPECT_NE(message.find("scales_v[0,0," + std::to_string(place) + "] (0)"), std::string::npos)
        << message;
    scales[place] = before;
  }
  EXPECT_TRUE(attention(context, r).ok());
}

// Of groups, a scale and a minimum in turn, dense or not; minima may have any sign.
TEST(ScalesData, OfGroupsAreCheckedAtEveryPlace) {
  Context context;
  Problem problem = dense("b1 hq1 sq1 skv50 d96 f32 kv=u4");
  AttentionRequest r = problem.request();
  std::vector<float> apart(50 * 8, 1.0f);
  for (const bool is_dense : {true, false}) {
    if (!is_dense) r.scales_v = make_view(apart.data(), {1, 1, 50, 6}, {400, 400, 8, 1});
    auto* const numbers = static_cast<float*>(r.scales_v.data);
    for (std::int64_t n = 0; n < 50 * 6; ++n) {
      float& number = numbers[is_dense ? n : n / 6 * 8 + n % 6];
      const float before = number;
      for (const float bad : {0.0f, -1.0f, kNaN, kInfinity, -kInfinity}) {
        number = bad;
        const std::string message = attention(context, r).message();
        const std::string place =
            "scales_v[0,0," + std::to_string(n / 6) + "," + std::to_string(n % 6) + "]";
        const bool is_good = n % 2 == 1 && std::abs(bad) <= 1.0f;
        EXPECT_EQ(message.find(place) == std::string::npos, is_good) << place << " " << bad;
      }
      number = before;
    }
    EXPECT_TRUE(attention(context, r).ok());
  }
}

// Rows behind a sequence's length, and those that the call writes, may have anything.
TEST(ScalesData, OfRowsThatAreNotThereMayBeAnything) {
  Context context;
  Problem problem = dense("b2 hq2 sq2 skv24 d8 f32 kv=i8 scales=token lens_kv=20,3 append=2");
  const AttentionRequest& r = problem.request();
  for (const TensorView* scales : {&r.scales_k, &r.scales_v}) {
    auto* const numbers = static_cast<float*>(scales->data);
    for (std::int64_t n = 0; n < scales->num_elements(); ++n) {
      if (n % 24 >= (n < 48 ? 20 : 3)) numbers[n] = kNaN;
    }
  }
  EXPECT_TRUE(attention(context, r).ok());
  const auto* const out = static_cast<const float*>(r.out.data);
  EXPECT_TRUE(std::all_of(out, out + r.out.num_elements(), [](float x) { return x == x; }));
}

TEST(ScalesRequest, IsRefusedByName) {
  const auto refused = [](const AttentionRequest& r, const std::string& fragment) {
    const std::string message = describe(r).status().message();
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
  };
  Problem problem = dense("b2 hq2 sq2 skv24 d8 f32 kv=i8 scales=token append=2");
  const AttentionRequest good = problem.request();
  AttentionRequest r = good;
  r.scales_k = r.k_new = r.v_new = TensorView{};
  refused(r, "scales_k (absent) must be given with k of i8");
  r = good;
  r.scales_v = r.k_new = r.v_new = TensorView{};
  refused(r, "scales_v (absent) must be given with v of i8");
  r = good;
  r.scales_k.shape[2] = 23;
  refused(r, "shape of scales_k ([2,2,23]) must broadcast to [2,2,24], [entries,Hkv,1|rows]");
  r = good;
  r.scales_k.dtype = Dtype::kI32;
  refused(r, "dtype of scales_k (i32) must be f32");
  r = good;
  r.k_new.dtype = Dtype::kI8;
  refused(r, "dtype of k_new (i8) must be q's, f32, for k has scales");
  r = good;
  r.scales_v.read_only = true;
  refused(r, "scales_v");
  r = good;
  r.scales_v = r.scales_k;
  refused(r, "must not overlap");
  Problem floats = dense("b1 hq1 sq2 skv24 d8 bf16");
  r = floats.request();
  r.scales_k = make_view(static_cast<float*>(good.scales_k.data), {1, 1, 24});
  refused(r, "scales_k (given) must be left out where k is bf16, not i8, u4, f8e4m3 or f8e5m2");
}

TEST(ScalesRequest, OfGroupsIsRefusedByName) {
  const auto refused = [](const AttentionRequest& r, const std::string& fragment) {
    const std::string message = describe(r).status().message();
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
  };
  Problem problem = dense("b2 hq2 sq2 skv24 d40 f32 kv=u4 append=2");
  const AttentionRequest good = problem.request();
  EXPECT_TRUE(describe(good).ok());
  AttentionRequest r = good;
  r.scales_v = r.k_new = r.v_new = TensorView{};
  refused(r, "scales_v (absent) must be given with v of u4");
  r = good;
  r.scales_k.rank = 3;
  refused(r, "rank of scales_k (3) must be 4, [entries,Hkv,rows,2*groups], where k is u4");
  r = good;
  r.scales_k.shape[3] = 2;
  refused(r, "shape of scales_k ([2,2,24,2]) must be [2,2,24,4]");
  r = good;
  r.scales_k.strides[3] = 2;
  refused(r, "last stride of scales_k (2) must be 1 where k is u4");
  r = good;
  r.k.strides[2] = 41;
  refused(r, "must have an even last extent with a stride of 1 and other strides that are even");
  r = good;
  r.k.shape[3] = 39;
  refused(r, "two elements of u4 share a byte");
  r = good;
  r.k.strides[3] = 2;
  refused(r, "with a stride of 1");
  Problem integers = dense("b2 hq2 sq2 skv24 d40 f32 kv=i8 scales=token");
  r = integers.request();
  r.scales_k = good.scales_k;
  refused(r, "rank of scales_k (4) must be 3, [entries,Hkv,1|rows], where k is i8");
  EXPECT_NE(
      parse_case("sq1 skv8 d7 f32 kv=u4").status().message().find("head_dim_qk (7) must be e"),
      std::string::npos)
      << parse_case("sq1 skv8 d7 f32 kv=u4").status().message();
}

TEST(HadamardRequest, NeedsAPowerOfTwo) {
  Problem problem = dense("b1 hq1 sq2 skv24 d40 f32");
  AttentionRequest r = problem.request();
  r.options.hadamard = true;
  const std::string message = describe(r).status().message();
  EXPECT_NE(message.find("head_dim_qk (40) must be a power of two with hadamard"),
            std::string::npos)
      << message;
}

TEST(ScalesCase, IsAsWide) {
  const Case c = parse_case("sq1 skv64 d8 bf16 kv=i8 v=f8e4m3").value();
  EXPECT_EQ(c.params.dtype_k, Dtype::kI8);
  EXPECT_EQ(c.params.dtype_v, Dtype::kF8E4M3);
  EXPECT_TRUE(c.params.features.has(Feature::kScales));
  EXPECT_FALSE(parse_case("sq1 skv8 d8 bf16 scales").value().params.features.has(Feature::kScales));
  EXPECT_EQ(to_string(parse_case("sq1 skv64 d8 bf16 kv=i8 scales").value()),
            "b1 hq1 hkv1 sq1 skv64 d8 bf16 kv=i8 scales=token");
}

}  // namespace
}  // namespace regard

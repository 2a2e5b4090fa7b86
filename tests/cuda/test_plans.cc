#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "backends/cuda_efficient/efficient_backend.h"
#include "backends/cuda_flash/flash_backend.h"
#include "backends/cuda_math/math_backend.h"
#include "regard/case.h"

// Claims, plans and workspace of the CUDA backends on described devices: no device is needed.

namespace regard {
namespace {

constexpr cuda_math::Launcher kNoMath = {};
constexpr cuda_efficient::Launcher kNoEfficient = {};
constexpr cuda_flash::Launcher kNoFlash = {};

const Backend& math() {
  static const cuda_math::MathBackend backend(cuda_math::make_info(), kNoMath);
  return backend;
}
const Backend& efficient() {
  static const cuda_efficient::EfficientBackend backend(cuda_efficient::make_info(), kNoEfficient);
  return backend;
}

const Backend& flash() {
  static const cuda_flash::FlashBackend backend(cuda_flash::make_info(), kNoFlash);
  return backend;
}

Env device(int sm) {
  Env env;
  env.device = DeviceType::kCuda;
  env.sm_version = sm;
  return env;
}

AttentionKey key_of(const std::string& text) {
  Case c = parse_case(text).value();
  c.params.device.type = DeviceType::kCuda;
  return AttentionKey::make(c.params, false).value();
}

std::string refusals_of(const Backend& backend, const std::string& text, int sm) {
  std::vector<Refusal> refusals;
  const bool supported = backend.supports(key_of(text), device(sm), &refusals);
  EXPECT_EQ(supported, refusals.empty());
  EXPECT_EQ(supported, backend.supports(key_of(text), device(sm), nullptr));
  std::string all;
  for (const Refusal& refusal : refusals) all += to_string(refusal) + ";";
  return all;
}

TEST(CudaPlans, ServeEveryDeviceFromSm75On) {
  const char* const text = "b1 hq4 hkv2 sq100 skv100 d72 bf16 causal dropout=0.1 saved grad";
  for (const Backend* backend : {&math(), &efficient()}) {
    for (const int sm : {75, 80, 86, 90, 100, 120}) {
      EXPECT_EQ(refusals_of(*backend, text, sm), "") << sm;
    }
    for (const int sm : {70, 72}) {
      EXPECT_NE(refusals_of(*backend, text, sm).find("compute capability 7.5 or newer"),
                std::string::npos);
    }
    EXPECT_NE(refusals_of(*backend, text, 0).find("got none"), std::string::npos);
    EXPECT_EQ(backend->info().device, DeviceType::kCuda);
  }
}

TEST(CudaPlans, RefuseTheCpu) {
  const AttentionKey key =
      AttentionKey::make(parse_case("b1 hq1 sq1 skv1 d8 f32").value().params, false).value();
  EXPECT_FALSE(math().supports(key, device(90), nullptr));
  EXPECT_FALSE(efficient().supports(key, device(90), nullptr));
}

TEST(CudaPlans, OnlyMathTakesF64AndScoresOut) {
  EXPECT_EQ(refusals_of(math(), "b1 hq1 sq9 skv9 d8 f64", 90), "");
  EXPECT_NE(refusals_of(efficient(), "b1 hq1 sq9 skv9 d8 f64", 90).find("f64"), std::string::npos);
  EXPECT_EQ(refusals_of(math(), "b1 hq1 sq9 skv9 d8 f32 scores=probs", 90), "");
  EXPECT_NE(refusals_of(efficient(), "b1 hq1 sq9 skv9 d8 f32 scores=probs", 90).find("scores_out"),
            std::string::npos);
}

TEST(CudaPlans, FlashNamesWhatItLacks) {
  const auto refusals = [](const std::string& text, int sm) {
    return refusals_of(flash(), "b1 hq4 hkv2 sq100 skv100 " + text, sm);
  };
  for (const int sm : {80, 86, 90, 100, 120}) {
    EXPECT_EQ(refusals("d128 bf16 causal diag=br dropout=0.1 mask bias sinks lens lse", sm), "")
        << sm;
  }
  const struct {
    const char* text;
    int sm;
    const char* reason;
  } kRefused[] = {
      {"d64 bf16", 75, "compute capability 8.0 or newer"},
      {"d64 f32", 80, "does not support f32"},
      {"d64 f8e4m3", 90, "does not support f8e4m3"},
      {"d36 bf16", 80, "head_dim_qk 8 to 256 in multiples of 8, got 36"},
      {"d64 dv264 f16", 80, "head_dim_v 8 to 256 in multiples of 8, got 264"},
      {"d64 f16 align_k=8", 80, "needs k aligned to 16 bytes, got 8 bytes"},
      {"d64 f16 descales", 80, "does not support descales"},
      {"d64 f16 kv=u4 v=i8 scales=token lens=kv", 80, "got k=u4 v=i8"},
      {"d80 bf16 kv=u4", 80, "head_dim_qk 32 to 256 in multiples of 32, got 80"},
      {"d64 dv48 bf16 kv=u4", 80, "head_dim_v 32 to 256 in multiples of 32, got 48"},
      {"d192 bf16 kv=u4", 86, "head_dim_qk 32 to 128 in multiples of 32, got 192"},
      {"d64 f16 kv=i8 v=f16 scales=token lens=kv", 80,
       "needs k and v that are both of 8 bits, both u4 or both of q's type: got k=i8 v=f16"},
      {"d64 bf16 kv=bf16 v=f8e4m3 lens=kv", 80, "got k=bf16 v=f8e4m3"},
      {"d72 f16 kv=i8 scales=token lens=kv", 80,
       "head_dim_qk 16 to 256 in multiples of 16, got 72"},
      {"d64 dv200 f16 kv=f8e4m3", 80, "head_dim_v 16 to 256 in multiples of 16, got 200"},
      {"d192 bf16 kv=i8 scales=token", 86, "head_dim_qk 16 to 128 in multiples of 16, got 192"},
      {"d64 bf16 kv=i8 scales=token saved grad", 80, "bf16 kv=i8"},
      {"d64 bf16 out=f32 saved grad", 90, "f32"},
      // Blocks of 99 KB of shared memory.
      {"d192 bf16", 86, "head_dim_qk 8 to 128 in multiples of 8, got 192"},
      {"d192 dv128 bf16", 120, "head_dim_qk 8 to 128 in multiples of 8, got 192"},
      {"d128 bf16 saved grad", 89, "head_dim_qk 8 to 96 in multiples of 8 in a backward, got 128"},
  };
  for (const auto& c : kRefused) {
    EXPECT_NE(refusals(c.text, c.sm).find(c.reason), std::string::npos)
        << c.text << ": " << refusals(c.text, c.sm);
  }
  for (const int sm : {80, 87, 90, 100}) {
    EXPECT_EQ(refusals("d192 dv256 bf16", sm), "") << sm;
    EXPECT_EQ(
        refusals("d256 f16 causal diag=br softcap=2 dropout=0.1 mask bias sinks lens saved grad",
                 sm),
        "")
        << sm;
  }
  EXPECT_EQ(refusals("d96 bf16 saved grad", 86), "");
  EXPECT_EQ(refusals("d64 bf16 packed saved grad", 80), "");
  EXPECT_EQ(refusals("d64 bf16 paged page_size=20 cache_leftpad packed lse", 80), "");
  EXPECT_EQ(refusals("d64 bf16 cache_batch_idx lse", 80), "");
  EXPECT_EQ(refusals("d64 f16 append=4 lens=kv rotary=64 rotary_interleaved tree=4 lse", 80), "");
  EXPECT_EQ(refusals("d64 f16 rotary=32 positions hadamard lse", 80), "");
  EXPECT_EQ(refusals("d256 bf16 kv=i8 scales=token append=4 lens=kv hadamard lse", 80), "");
  EXPECT_EQ(refusals("d192 dv64 f16 kv=f8e4m3 v=i8 scales=all paged page_size=20 lse", 80), "");
  EXPECT_EQ(refusals("d128 bf16 kv=f8e5m2", 86), "");
  EXPECT_EQ(refusals("d256 bf16 kv=u4 append=4 lens=kv hadamard lse", 80), "");
  EXPECT_EQ(refusals("d192 dv32 f16 kv=u4 paged page_size=20 lse", 80), "");
  EXPECT_EQ(refusals("d224 f16 kv=u4", 80), "");
  EXPECT_EQ(refusals("d64 dv208 f16 kv=f8e4m3", 80), "");
  EXPECT_EQ(refusals("d64 f16 kv=i8 scales=token channel_scales lens=kv", 80), "");
  EXPECT_EQ(refusals("d256 bf16 kv=u4 channel_scales lens=kv lse", 80), "");
  const char* const many = "b1 hq4 hkv2 sq1 skv4294967296 d64 f16 paged page_size=65536";
  for (const Backend* backend : {&flash(), &efficient(), &math()}) {
    EXPECT_NE(refusals_of(*backend, many, 80).find("at most 4294967295 rows in pages"),
              std::string::npos);
  }
}

/// Refusals of a call by a backend that has every kind of cache.
class CudaQuantisedPlans : public testing::TestWithParam<const Backend* (*)()> {};

TEST_P(CudaQuantisedPlans, HaveQuantisedCaches) {
  const auto refusals = [](const std::string& text) {
    return refusals_of(*GetParam()(), "b2 hq4 hkv2 sq4 skv96 " + text, 75);
  };
  for (const char* text :
       {"d64 bf16 kv=i8 scales=token append=4 lens=kv hadamard", "d36 f16 kv=u4 channel_scales",
        "d64 f32 kv=f8e4m3 v=i8 scales=all paged page_size=16", "d2048 f32 hadamard",
        "d64 f8e5m2 out=bf16 scales=token", "d40 f32 kv=bf16"}) {
    EXPECT_EQ(refusals(text), "") << text;
  }
  const std::pair<const char*, const char*> kRefused[] = {
      {"d4096 f32 hadamard", "at most 2048 columns of q and k with hadamard"},
      {"d64 f8e4m3 scales=1x32 scales_q", "does not support scales_q"},
      {"d64 f8e4m3 scales=1x32 scales_q", "does not support scales_1x32"},
      {"d64 f8e4m3 quantized_probs", "does not support quantized_probs"},
      {"d64 bf16 kv=i8 scales=token grad", "bf16 kv=i8"},
      {"d64 bf16 kv=f32", "bf16 kv=f32"},
  };
  for (const auto& [text, reason] : kRefused) {
    EXPECT_NE(refusals(text).find(reason), std::string::npos) << text << ": " << refusals(text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaQuantisedPlans,
                         testing::Values([]() -> const Backend* { return &math(); },
                                         []() -> const Backend* { return &efficient(); }));

TEST(CudaPlans, MathRotatesNoRowsOfF64) {
  for (const char* text : {"rotary=8 positions", "hadamard"}) {
    const std::string call = std::string("b1 hq2 sq4 skv9 d8 ") + text;
    EXPECT_NE(refusals_of(math(), call + " f64", 90).find("rotates and mixes rows in f32"),
              std::string::npos);
    EXPECT_EQ(refusals_of(math(), call + " f32", 90), "");
  }
  EXPECT_EQ(refusals_of(math(), "b2 hq2 sq4 skv32 d8 f64 paged page_size=8 append=4 lens=kv", 90),
            "");
}

TEST(CudaPlans, FlashSplitsAsEfficientDoes) {
  const Env env = device(90);
  for (const char* text :
       {"b3 hq8 hkv2 sq8 skv1536 d64 dv56 bf16", "b1 hq1 sq1 skv1000000 d256 f16",
        "b3 hq8 hkv2 sq9 skv1536 d64 dv56 bf16", "b1 hq1 sq1 skv512 d96 bf16"}) {
    const AttentionKey key = key_of(text);
    const KernelPlan plan = flash().plan(key, env).value();
    EXPECT_EQ(plan.workspace_bytes, efficient().workspace_bytes(key, env)) << text;
    EXPECT_EQ(plan.kernel.find("_split_") != std::string::npos, plan.workspace_bytes > 0) << text;
    EXPECT_EQ(plan.tile_q, plan.workspace_bytes > 0 ? 32 : 128);
  }
}

TEST(CudaPlans, StateTheirWorkspace) {
  // 2 * 4 heads * 16 rows * 32 keys.
  const AttentionKey key = key_of("b2 hq4 hkv2 sq16 skv32 d64 f32 saved grad");
  const AttentionKey f64 = key_of("b2 hq4 hkv2 sq16 skv32 d64 f64 saved grad");
  constexpr std::int64_t kScores = 2 * 4 * 16 * 32, kRows = 2 * 4 * 16;
  const Env env = device(90);
  EXPECT_EQ(math().workspace_bytes(key, env), kScores * 4);
  EXPECT_EQ(math().workspace_bytes(f64, env), kScores * 8);
  EXPECT_EQ(math().backward_workspace_bytes(key, env), (2 * kScores + kRows) * 4);
  EXPECT_EQ(efficient().workspace_bytes(key, env), 0);
  EXPECT_EQ(efficient().backward_workspace_bytes(key, env), kRows * 4);
  EXPECT_EQ(flash().backward_workspace_bytes(key, env), kRows * 4);
  // 4 heads of 20 packed rows.
  const AttentionKey packed = key_of("b2 hq4 hkv2 sq16 skv32 d64 bf16 packed total_q=20 lse grad");
  EXPECT_EQ(flash().backward_workspace_bytes(packed, env), 4 * 20 * 4);
  const AttentionKey packed_f64 =
      key_of("b2 hq4 hkv2 sq16 skv32 d64 f64 packed total_q=20 lse grad");
  EXPECT_EQ(math().backward_workspace_bytes(packed_f64, env), 2 * kScores * 8 + 4 * 20 * 8);
  // Rotated queries come before what splits leave.
  const AttentionKey rotary = key_of("b3 hq8 hkv2 sq8 skv1536 d64 dv56 bf16 append=8 rotary=64");
  EXPECT_EQ(flash().workspace_bytes(rotary, env), 3 * 8 * 8 * 64 * 2 + 3 * 2 * 3 * 32 * 58 * 4);
  EXPECT_EQ(flash().plan(rotary, env)->kernel, "cuda_flash_split_bf16_d64");
  const AttentionKey prompt = key_of("b1 hq4 hkv2 sq96 skv1000 d64 f16 rotary=64 positions");
  EXPECT_EQ(flash().workspace_bytes(prompt, env), 4 * 96 * 64 * 2);
  EXPECT_EQ(flash().plan(prompt, env)->kernel, "cuda_flash_f16_d64");
  EXPECT_EQ(math().workspace_bytes(prompt, env), 4 * 96 * 64 * 2 + 4 * 96 * 1024 * 4);
  for (const Backend* backend : {&math(), &efficient()}) {
    const KernelPlan forward = backend->plan(key, env).value();
    const KernelPlan backward = backend->plan_backward(key, env).value();
    EXPECT_EQ(forward.workspace_bytes, backend->workspace_bytes(key, env));
    EXPECT_EQ(backward.workspace_bytes, backend->backward_workspace_bytes(key, env));
  }
}

// Up to 32 rows and from 513 keys on: a split has d_v sums, a maximum and their sum for each row.
TEST(CudaPlans, SplitKeysForFewRows) {
  const Env env = device(90);
  const auto bytes = [&](const char* text) {
    const AttentionKey key = key_of(text);
    const KernelPlan plan = efficient().plan(key, env).value();
    EXPECT_EQ(plan.workspace_bytes, efficient().workspace_bytes(key, env));
    EXPECT_EQ(plan.kernel.find("_split_") != std::string::npos, plan.workspace_bytes > 0) << text;
    return plan.workspace_bytes;
  };
  EXPECT_EQ(bytes("b3 hq8 hkv2 sq8 skv1536 d64 dv62 bf16"), 3 * 2 * 3 * 32 * (62 + 2) * 4);
  EXPECT_EQ(bytes("b3 hq8 hkv2 sq9 skv1536 d64 dv62 bf16"), 0);
  EXPECT_EQ(bytes("b3 hq33 hkv1 sq1 skv1536 d64 dv62 f32"), 0);
  EXPECT_EQ(bytes("b1 hq1 sq1 skv512 d64 f32"), 0);
  EXPECT_EQ(bytes("b1 hq1 sq1 skv1000000 d62 f16"), 16 * (62 + 2) * 4);
}

TEST(CudaPlans, WorkspaceSaturates) {
  const AttentionKey key = key_of("b1000 hq1000 hkv1000 sq1000000 skv1000000 d1 f32");
  EXPECT_EQ(math().workspace_bytes(key, device(90)) % 64, 0);
  EXPECT_GT(math().workspace_bytes(key, device(90)), std::int64_t{1} << 60);
}

TEST(CudaPlans, NameTheirKernels) {
  const Env env = device(80);
  const auto efficient_kernel = [&](const char* text) {
    return efficient().plan(key_of(text), env)->kernel;
  };
  EXPECT_EQ(efficient_kernel("b1 hq1 sq9 skv9 d64 bf16"), "cuda_efficient_bf16_d64");
  EXPECT_EQ(efficient_kernel("b1 hq1 sq9 skv9 d65 f32"), "cuda_efficient_f32_d128");
  EXPECT_EQ(efficient_kernel("b1 hq1 sq9 skv9 d65 f8e4m3"), "cuda_efficient_f8e4m3_d128");
  EXPECT_EQ(efficient_kernel("b1 hq1 sq9 skv513 d65 f32"), "cuda_efficient_split_f32_d128");
  EXPECT_EQ(flash().plan(key_of("b1 hq1 sq9 skv9 d64 bf16"), env)->kernel, "cuda_flash_bf16_d64");
  EXPECT_EQ(flash().plan(key_of("b1 hq1 sq9 skv9 d72 dv8 f16"), env)->kernel, "cuda_flash_f16_d96");
  EXPECT_EQ(flash().plan(key_of("b1 hq1 sq9 skv600 d64 dv200 bf16"), env)->kernel,
            "cuda_flash_split_bf16_d256");
  EXPECT_EQ(efficient().plan_backward(key_of("b1 hq1 sq9 skv9 d64 dv72 bf16 grad"), env)->kernel,
            "cuda_efficient_backward_bf16_d128");
  const KernelPlan narrow =
      flash().plan_backward(key_of("b1 hq1 sq9 skv9 d72 bf16 grad"), env).value();
  EXPECT_EQ(narrow.kernel, "cuda_flash_backward_bf16_d96");
  EXPECT_EQ(narrow.tile_kv, 128);
  const KernelPlan wide =
      flash().plan_backward(key_of("b1 hq1 sq9 skv9 d64 dv256 f16 grad"), env).value();
  EXPECT_EQ(wide.kernel, "cuda_flash_backward_f16_d256");
  EXPECT_EQ(wide.tile_kv, 64);
  EXPECT_EQ(math().plan(key_of("b1 hq1 sq9 skv9 d65 f64"), env)->kernel, "cuda_math_f64");
  EXPECT_EQ(math().plan_backward(key_of("b1 hq1 sq9 skv9 d65 f32 saved grad"), env)->kernel,
            "cuda_math_backward_f32");
}

}  // namespace
}  // namespace regard

#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "backends/cuda_efficient/launch.h"
#include "base/checked.h"
#include "problem/claims.h"
#include "problem/make_problem.h"
#include "regard/backend.h"

namespace regard::cuda_efficient {

/// The least compute capability * 10 whose kernels multiply on tensor cores: 80, or the least above
/// that a build is for.
#if defined(REGARD_TENSOR_SM)
inline constexpr std::int32_t kTensorSm = REGARD_TENSOR_SM;
#else
inline constexpr std::int32_t kTensorSm = 80;
#endif

inline BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kEfficient;
  info.summary =
      "tiled online softmax, any head_dim, no workspace in the forward; bf16 and f16 on "
      "tensor cores";
  info.device = DeviceType::kCuda;
  info.min_sm = 75;
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::forward_claims();
  info.backward = problem::backward_claims(info.forward);
  // Tensor cores take probabilities, and gradients of scores, rounded to the inputs' type.
  const auto add_rounded = [](Claims& claims, Dtype dtype, Dtype out, double error_bound) {
    DtypeClaim rounded{dtype, dtype, out, error_bound};
    rounded.min_sm = kTensorSm;
    claims.dtypes.push_back(rounded);
  };
  add_rounded(info.forward, Dtype::kBf16, Dtype::kBf16, 6e-3);
  add_rounded(info.forward, Dtype::kBf16, Dtype::kF32, 4e-3);
  add_rounded(info.forward, Dtype::kF16, Dtype::kF16, 8e-4);
  add_rounded(info.forward, Dtype::kF16, Dtype::kF32, 5e-4);
  add_rounded(info.backward, Dtype::kBf16, Dtype::kBf16, 8e-3);
  return info;
}

/// EFFICIENT on a CUDA device, or, in tests, on whatever a launcher launches on.
class EfficientBackend final : public Backend {
 public:
  EfficientBackend(BackendInfo info, const Launcher& launcher)
      : info_(std::move(info)), launcher_(launcher) {}

  const BackendInfo& info() const override { return info_; }

  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return 0; }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const bool is_half = p.dtype_q == Dtype::kBf16 || p.dtype_q == Dtype::kF16;
    if (!is_half || env.sm_version < kTensorSm) {
      return make_plan(key, "cuda_efficient", p.head_dim_v, workspace_bytes(key, env));
    }
    KernelPlan plan = make_plan(key, "cuda_efficient_tensor", std::max(p.head_dim_qk, p.head_dim_v),
                                workspace_bytes(key, env));
    plan.sm = kTensorSm;
    plan.tile_q = 128;
    return plan;
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    problem::Problem problem;
    problem::make_problem(params, buffers, &problem);
    return launcher_.forward(problem, plan.sm >= kTensorSm, launch.stream);
  }

  /// A number for each row.
  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env&) const override {
    const AttentionParams& p = key.params();
    const std::int64_t rows = saturating_mul(saturating_mul(p.batch, p.num_heads_q), p.seqlen_q);
    return round_up(saturating_mul(rows, sizeof(float)), 64);
  }

  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const std::int64_t columns = std::max(p.head_dim_qk, p.head_dim_v);
    const std::int64_t workspace = backward_workspace_bytes(key, env);
    const bool is_bf16 = p.dtype_q == Dtype::kBf16 && p.dtype_out == Dtype::kBf16;
    if (!is_bf16 || columns > kWide || env.sm_version < kTensorSm) {
      return make_plan(key, "cuda_efficient_backward", columns, workspace);
    }
    KernelPlan plan = make_plan(key, "cuda_efficient_backward_tensor", columns, workspace);
    plan.sm = kTensorSm;
    plan.tile_q = 128;
    plan.tile_kv = 32;
    return plan;
  }

  Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                          const Buffers& buffers, const GradBuffers& gradients,
                          const Launch& launch) const override {
    BackwardArgs args;
    problem::make_grad_problem(params, buffers, gradients, &args.grad);
    args.delta = static_cast<float*>(launch.workspace.data);
    return launcher_.backward(args, plan.sm >= kTensorSm, launch.stream);
  }

 private:
  /// Tiles are the same on every architecture: they fit the 48 KB of shared memory that all have.
  static KernelPlan make_plan(const AttentionKey& key, const char* name, std::int64_t columns,
                              std::int64_t workspace) {
    KernelPlan plan;
    plan.kernel = std::string(name) + "_" + to_string(key.params().dtype_q) + "_d" +
                  std::to_string(is_wide(columns) ? kWide : kNarrow);
    plan.tile_q = 64;
    plan.tile_kv = 64;
    plan.workspace_bytes = workspace;
    return plan;
  }

  BackendInfo info_;
  const Launcher& launcher_;
};

}  // namespace regard::cuda_efficient

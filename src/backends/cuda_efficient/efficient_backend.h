#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "backends/cuda_efficient/launch.h"
#include "base/checked.h"
#include "problem/claims.h"
#include "problem/make_problem.h"
#include "regard/backend.h"
#include "semantics/splits.h"

namespace regard::cuda_efficient {

/// The smallest compute capability * 10 whose kernels multiply on tensor cores: 80, or the smallest
/// above that a build is for.
#if defined(REGARD_TENSOR_SM)
inline constexpr std::int32_t kTensorSm = REGARD_TENSOR_SM;
#else
inline constexpr std::int32_t kTensorSm = 80;
#endif

inline BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kEfficient;
  info.summary =
      "tiled online softmax, any head_dim; bf16 and f16 on tensor cores; the keys of few rows in "
      "parts, side by side";
  info.device = DeviceType::kCuda;
  info.min_sm = 75;
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::forward_claims();
  info.backward = problem::backward_claims(info.forward);
  // Tensor cores take probabilities, and gradients of scores, rounded to the inputs' type.
  const auto add_rounded = [](Claims& claims, Dtype dtype, Dtype out, double error_bound) {
    DtypeClaim rounded{dtype, dtype, out, error_bound, dtype};
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

  /// None but for splits of the keys.
  std::int64_t workspace_bytes(const AttentionKey& key, const Env&) const override {
    return splits_layout(key.params()).bytes;
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const bool is_half = p.dtype_q == Dtype::kBf16 || p.dtype_q == Dtype::kF16;
    const bool on_tensor_cores = is_half && env.sm_version >= kTensorSm;
    const std::int64_t workspace = workspace_bytes(key, env);
    std::string name = on_tensor_cores ? "cuda_efficient_tensor" : "cuda_efficient";
    if (workspace > 0) name += "_split";
    if (!on_tensor_cores) return make_plan(key, name, p.head_dim_v, workspace);
    KernelPlan plan = make_plan(key, name, std::max(p.head_dim_qk, p.head_dim_v), workspace);
    plan.sm = kTensorSm;
    plan.tile_q = 128;
    return plan;
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    ForwardArgs args;
    problem::make_problem(params, buffers, &args.problem);
    // A plan that splits no keys has no workspace, however few rows a call under it has.
    const SplitsLayout layout = splits_layout(params);
    if (plan.workspace_bytes > 0 && layout.row_max > 1) {
      auto* const floats = static_cast<float*>(launch.workspace.data);
      args.splits = {layout.row_max, floats, floats + layout.at_stats};
    }
    return launcher_.forward(args, plan.sm >= kTensorSm, launch.stream);
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
  struct SplitsLayout {
    std::int64_t row_max = 1;   // splits of a sequence
    std::int64_t at_stats = 0;  // floats
    std::int64_t bytes = 0;
  };

  static SplitsLayout splits_layout(const AttentionParams& p) {
    const std::int64_t group_size = p.num_heads_kv == 0 ? 0 : p.num_heads_q / p.num_heads_kv;
    const std::int64_t rows = saturating_mul(p.seqlen_q, group_size);
    const std::int64_t row_max = semantics::split_count(p.seqlen_kv);
    if (rows == 0 || rows > kSplitRows || row_max == 1) return {};
    const std::int64_t heads = saturating_mul(p.batch, p.num_heads_kv);
    const std::int64_t all = saturating_mul(saturating_mul(heads, row_max), rows);
    const std::int64_t at_stats = saturating_mul(all, p.head_dim_v);
    const std::int64_t floats = saturating_add(at_stats, saturating_mul(all, 2));
    return {row_max, at_stats, round_up(saturating_mul(floats, sizeof(float)), 64)};
  }

  /// Tiles are the same on every architecture: they fit the 48 KB of shared memory that all have.
  static KernelPlan make_plan(const AttentionKey& key, const std::string& name,
                              std::int64_t columns, std::int64_t workspace) {
    KernelPlan plan;
    plan.kernel = name + "_" + to_string(key.params().dtype_q) + "_d" +
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

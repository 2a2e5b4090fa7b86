#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda_efficient/launch.h"
#include "cuda/delta_bytes.h"
#include "cuda/splits_layout.h"
#include "cuda/tensor_sm.h"
#include "problem/claims.h"
#include "problem/make_problem.h"
#include "regard/backend.h"

namespace regard::cuda_efficient {

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
  const auto add_rounded = [](Claims& claims, std::vector<DtypeClaim> all) {
    for (DtypeClaim& rounded : all) {
      rounded.min_sm = cuda::kTensorSm;
      claims.dtypes.push_back(rounded);
    }
  };
  add_rounded(info.forward, cuda::tensor_forward_claims());
  add_rounded(info.backward, cuda::tensor_backward_claims());
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
    return cuda::splits_layout(key.params()).bytes;
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const bool is_half = p.dtype_q == Dtype::kBf16 || p.dtype_q == Dtype::kF16;
    const bool on_tensor_cores = is_half && env.sm_version >= cuda::kTensorSm;
    const std::int64_t workspace = workspace_bytes(key, env);
    std::string name = on_tensor_cores ? "cuda_efficient_tensor" : "cuda_efficient";
    if (workspace > 0) name += "_split";
    if (!on_tensor_cores) return make_plan(key, name, p.head_dim_v, workspace);
    KernelPlan plan = make_plan(key, name, std::max(p.head_dim_qk, p.head_dim_v), workspace);
    plan.sm = cuda::kTensorSm;
    plan.tile_q = 128;
    return plan;
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    ForwardArgs args;
    problem::make_problem(params, buffers, &args.problem);
    args.splits = cuda::splits_of(params, plan.workspace_bytes, launch.workspace.data);
    return launcher_.forward(args, plan.sm >= cuda::kTensorSm, launch.stream);
  }

  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env&) const override {
    return cuda::delta_bytes(key.params());
  }

  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const std::int64_t columns = std::max(p.head_dim_qk, p.head_dim_v);
    const std::int64_t workspace = backward_workspace_bytes(key, env);
    const bool is_half = p.dtype_q == Dtype::kBf16 || p.dtype_q == Dtype::kF16;
    if (!is_half || p.dtype_out != p.dtype_q || columns > kWide ||
        env.sm_version < cuda::kTensorSm) {
      return make_plan(key, "cuda_efficient_backward", columns, workspace);
    }
    KernelPlan plan = make_plan(key, "cuda_efficient_backward_tensor", columns, workspace);
    plan.sm = cuda::kTensorSm;
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
    return launcher_.backward(args, plan.sm >= cuda::kTensorSm, launch.stream);
  }

 private:
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

#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda_efficient/launch.h"
#include "cuda/caches.h"
#include "cuda/delta_bytes.h"
#include "cuda/splits_layout.h"
#include "problem/claims.h"
#include "problem/make_problem.h"
#include "regard/backend.h"

namespace regard::cuda_efficient {

inline BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kEfficient;
  info.summary =
      "tiled online softmax in f32, any head_dim; the keys of few rows in parts, side by side";
  info.device = DeviceType::kCuda;
  info.min_sm = 75;
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::forward_claims();
  problem::add_narrower_keys(&info.forward);
  info.forward.features =
      info.forward.features.with(problem::cache_features()).with(problem::quantised_features());
  info.backward = problem::backward_claims(info.forward);
  return info;
}

/// EFFICIENT on a CUDA device, or, in tests, on whatever a launcher launches on.
class EfficientBackend final : public Backend {
 public:
  EfficientBackend(BackendInfo info, const Launcher& launcher)
      : info_(std::move(info)), launcher_(launcher) {}

  const BackendInfo& info() const override { return info_; }

  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    const bool claimed = check_claims(info_, key, env, refusals);
    return cuda::takes_cache(key.params(), refusals) && claimed;
  }

  /// None but for rotated queries and splits of the keys.
  std::int64_t workspace_bytes(const AttentionKey& key, const Env&) const override {
    return cuda::forward_bytes(key.params());
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const bool splits = cuda::splits_layout(p).bytes > 0;
    Expected<KernelPlan> plan = make_plan(key, splits ? "cuda_efficient_split" : "cuda_efficient",
                                          p.head_dim_v, workspace_bytes(key, env));
    if (splits) plan->tile_q = cuda::kSplitRows;
    return plan;
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    ForwardArgs args;
    problem::make_problem(params, buffers, &args.problem);
    args.kv_entries = buffers.k.shape[0];
    Status s = cuda::append_before(launcher_.append, buffers, launch, &args.problem);
    if (!s.ok()) return s;
    args.splits = cuda::splits_after_queries(params, plan, launch);
    return launcher_.forward(args, launch.stream);
  }

  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env&) const override {
    return cuda::delta_bytes(key.params());
  }

  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const std::int64_t columns = std::max(p.head_dim_qk, p.head_dim_v);
    return make_plan(key, "cuda_efficient_backward", columns, backward_workspace_bytes(key, env));
  }

  Status execute_backward(const KernelPlan&, const AttentionParams& params, const Buffers& buffers,
                          const GradBuffers& gradients, const Launch& launch) const override {
    BackwardArgs args;
    problem::make_grad_problem(params, buffers, gradients, &args.grad);
    args.delta = static_cast<float*>(launch.workspace.data);
    return launcher_.backward(args, launch.stream);
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

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backends/cuda_math/launch.h"
#include "base/scratch.h"
#include "cuda/caches.h"
#include "cuda/delta_bytes.h"
#include "problem/claims.h"
#include "problem/make_problem.h"
#include "regard/backend.h"

namespace regard::cuda_math {

inline BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kMath;
  info.summary = "unfused and deterministic: scores, softmax, product; any head_dim";
  info.device = DeviceType::kCuda;
  info.min_sm = 75;
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::forward_claims();
  problem::add_narrower_keys(&info.forward);
  info.forward.features = info.forward.features.with(problem::cache_features())
                              .with(problem::quantised_features())
                              .with({Feature::kScoresOut});
  info.forward.dtypes.push_back({Dtype::kF64, Dtype::kF64, Dtype::kF64, 3e-15});
  info.backward = problem::backward_claims(info.forward);
  info.backward.dtypes.push_back({Dtype::kF64, Dtype::kF64, Dtype::kF64, 6e-15});
  return info;
}

/// MATH on a CUDA device, or, in tests, on whatever a launcher launches on.
class MathBackend final : public Backend {
 public:
  MathBackend(BackendInfo info, const Launcher& launcher)
      : info_(std::move(info)), launcher_(launcher) {}

  const BackendInfo& info() const override { return info_; }

  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    const bool claimed = check_claims(info_, key, env, refusals);
    const bool rotates = rotates_f64(key.params(), refusals);
    return cuda::takes_cache(key.params(), refusals) && !rotates && claimed;
  }

  std::int64_t workspace_bytes(const AttentionKey& key, const Env&) const override {
    return forward_layout(key.params()).bytes;
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    return make_plan(key, "cuda_math", workspace_bytes(key, env));
  }

  Status execute(const KernelPlan&, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    ForwardArgs args;
    problem::make_problem(params, buffers, &args.problem);
    args.kv_entries = buffers.k.shape[0];
    Status s = cuda::append_before(launcher_.append, buffers, launch, &args.problem);
    if (!s.ok()) return s;
    args.scores = static_cast<char*>(launch.workspace.data) + forward_layout(params).at_probs;
    return launcher_.forward(args, is_f64(params), launch.stream);
  }

  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env&) const override {
    return backward_layout(key.params()).bytes;
  }

  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    return make_plan(key, "cuda_math_backward", backward_workspace_bytes(key, env));
  }

  Status execute_backward(const KernelPlan&, const AttentionParams& params, const Buffers& buffers,
                          const GradBuffers& gradients, const Launch& launch) const override {
    BackwardArgs args;
    problem::make_grad_problem(params, buffers, gradients, &args.grad);
    const Layout layout = backward_layout(params);
    char* const workspace = static_cast<char*>(launch.workspace.data);
    args.probs = workspace + layout.at_probs;
    args.d_scores = workspace + layout.at_d_scores;
    args.delta = workspace + layout.at_delta;
    return launcher_.backward(args, is_f64(params), launch.stream);
  }

 private:
  struct Layout {
    std::int64_t at_probs = 0, at_d_scores = 0, at_delta = 0;
    std::int64_t bytes = 0;
  };

  static bool is_f64(const AttentionParams& p) { return p.dtype_q == Dtype::kF64; }
  static std::int64_t scalar_bytes(const AttentionParams& p) { return is_f64(p) ? 8 : 4; }
  /// Of the matrices, in which every sequence has as many as the longest.
  static std::int64_t rows(const AttentionParams& p) {
    return saturating_mul(saturating_mul(p.batch, p.num_heads_q), p.seqlen_q);
  }

  /// What rotates rows and multiplies them by the Hadamard matrix computes in f32.
  static bool rotates_f64(const AttentionParams& p, std::vector<Refusal>* refusals) {
    const bool rotates = p.features.has(Feature::kRotary) || p.features.has(Feature::kHadamard);
    if (!rotates || !is_f64(p)) return false;
    if (refusals != nullptr) {
      refusals->push_back({RefusalCode::kCustom,
                           "rotates and mixes rows in f32, with types no wider",
                           "got f64",
                           {}});
    }
    return true;
  }

  /// Rotated queries come first.
  static Layout forward_layout(const AttentionParams& p) {
    Layout layout;
    ScratchLayout space;
    space.take(problem::rotated_queries_bytes(p), 1);
    layout.at_probs = space.take(saturating_mul(rows(p), p.seqlen_kv), scalar_bytes(p));
    layout.bytes = space.total();
    return layout;
  }

  static Layout backward_layout(const AttentionParams& p) {
    Layout layout;
    ScratchLayout space;
    layout.at_probs = space.take(saturating_mul(rows(p), p.seqlen_kv), scalar_bytes(p));
    layout.at_d_scores = space.take(saturating_mul(rows(p), p.seqlen_kv), scalar_bytes(p));
    layout.at_delta = space.take(cuda::delta_rows(p), scalar_bytes(p));
    layout.bytes = space.total();
    return layout;
  }

  static KernelPlan make_plan(const AttentionKey& key, const char* name, std::int64_t workspace) {
    KernelPlan plan;
    plan.kernel = std::string(name) + "_" + to_string(key.params().dtype_q);
    plan.tile_q = 64;
    plan.tile_kv = 64;
    plan.workspace_bytes = workspace;
    return plan;
  }

  BackendInfo info_;
  const Launcher& launcher_;
};

}  // namespace regard::cuda_math

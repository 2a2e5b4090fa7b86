#include "cpu/run_backward.h"

#include <algorithm>

#include "base/checked.h"
#include "cpu/make_problem.h"
#include "cpu/run_tasks.h"
#include "cpu/scratch.h"

namespace regard::cpu {
namespace {

constexpr std::int64_t kTileKv = 64;  // a constant, so that no sum's order depends on anything

std::int64_t group_size(const AttentionParams& p) noexcept {
  return p.num_heads_kv > 0 ? p.num_heads_q / p.num_heads_kv : 1;
}

/// Fills args but for the problem; returns a slot's bytes, saturating.
std::int64_t lay_out(const AttentionParams& p, const BackwardKernel& kernel,
                     BackwardArgs* args) noexcept {
  const std::int64_t width = kernel.width, bytes = kernel.scalar_bytes;
  const std::int64_t group = std::max<std::int64_t>(group_size(p), 1);
  const bool converts = p.dtype_kv != Dtype::kF32 && p.dtype_kv != Dtype::kF64;
  const std::int64_t copied = converts ? kTileKv : 0;
  const std::int64_t chunks_qk = saturating_mul(ceil_div(p.head_dim_qk, width), width);
  const std::int64_t chunks_v = saturating_mul(ceil_div(p.head_dim_v, width), width);
  args->grid = make_grid(p, width);
  args->tile_kv = kTileKv;
  args->queries_per_task = std::max<std::int64_t>(width / group, 1);
  ScratchLayout layout;
  args->at_strip = layout.take(1, kernel.strip_bytes);
  args->at_q = layout.take(saturating_mul(width, p.head_dim_qk), bytes);
  args->at_d_out = layout.take(saturating_mul(width, p.head_dim_v), bytes);
  args->at_out = layout.take(saturating_mul(width, p.head_dim_v), bytes);
  args->at_probs = layout.take(kTileKv * width, bytes);
  args->at_d_scores = layout.take(kTileKv * width, bytes);
  args->at_capped = layout.take(kTileKv * width, bytes);
  args->at_keys = layout.take(saturating_mul(copied, p.head_dim_qk), bytes);
  args->at_values = layout.take(saturating_mul(copied, p.head_dim_v), bytes);
  args->at_row = layout.take(kTileKv, bytes);
  args->at_d_q = layout.take(saturating_mul(width, p.head_dim_qk), bytes);
  args->at_q_rows = layout.take(saturating_mul(chunks_qk, width), bytes);
  args->at_d_out_rows = layout.take(saturating_mul(chunks_v, width), bytes);
  args->at_d_k = layout.take(saturating_mul(chunks_qk, kTileKv), bytes);
  args->at_d_v = layout.take(saturating_mul(chunks_v, kTileKv), bytes);
  const bool has_bias = p.features.has(Feature::kAttnBias);
  const std::int64_t sums = saturating_mul(args->queries_per_task, saturating_mul(group, kTileKv));
  args->at_d_bias = layout.take(has_bias ? sums : 0, sizeof(double));
  return layout.total();
}

std::int64_t key_tasks(const AttentionParams& p) noexcept {
  return saturating_mul(saturating_mul(p.batch, p.num_heads_kv), ceil_div(p.seqlen_kv, kTileKv));
}

std::int32_t slots_of(const AttentionKey& key, const Env& env,
                      const BackwardKernel& kernel) noexcept {
  const AttentionParams& p = key.params();
  return plan_slots(env, p, std::max(count_tasks(p, kernel.width), key_tasks(p)));
}

}  // namespace

std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env,
                                      const BackwardKernel& kernel) noexcept {
  BackwardArgs args;
  return saturating_mul(lay_out(key.params(), kernel, &args), slots_of(key, env, kernel));
}

KernelPlan plan_backward(const AttentionKey& key, const Env& env, const BackwardKernel& kernel) {
  KernelPlan plan;
  plan.slots = slots_of(key, env, kernel);
  plan.tile_q = kernel.width;
  plan.tile_kv = kTileKv;
  plan.workspace_bytes = backward_workspace_bytes(key, env, kernel);
  return plan;
}

void run_backward(const BackwardKernel& kernel, const KernelPlan& plan,
                  const AttentionParams& params, const Buffers& buffers,
                  const GradBuffers& gradients, const Launch& launch) {
  BackwardArgs args;
  const std::int64_t slot_bytes = lay_out(params, kernel, &args);
  make_grad_problem(params, buffers, gradients, &args.grad);
  const std::int32_t slots = useful_slots(params, plan.slots);
  const auto run = [&](BackwardFn pass, std::int64_t tasks) {
    run_tasks({pass, &args, tasks, slot_bytes}, slots, launch);
  };
  if (gradients.d_q.present()) run(kernel.d_queries, count_tasks(params, kernel.width));
  if (gradients.d_k.present() || gradients.d_v.present()) run(kernel.d_keys, key_tasks(params));
  if (gradients.d_bias.present()) {
    const BiasGrid grid = bias_grid(args);
    run(kernel.d_bias, grid.batches * grid.heads_kv * grid.query_blocks * grid.key_tiles);
  }
  if (gradients.d_sinks.present()) run(kernel.d_sinks, params.num_heads_q);
}

}  // namespace regard::cpu

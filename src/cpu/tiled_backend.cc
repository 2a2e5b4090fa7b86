#include "cpu/tiled_backend.h"

#include <string>
#include <utility>

#include "base/checked.h"
#include "cpu/make_problem.h"
#include "cpu/run_tasks.h"
#include "cpu/scratch.h"

namespace regard::cpu {

TiledBackend::TiledBackend(BackendInfo info, const TiledTraits& traits)
    : info_(std::move(info)), traits_(traits) {}

/// The best unit that runs on a machine of `isa`.
const TiledUnit& TiledBackend::unit(Isa isa) const noexcept {
  std::size_t best = 0;
  while (best + 1 < traits_.units.size() && traits_.units[best + 1].isa <= isa) ++best;
  return traits_.units[best];
}

const TiledKernel& TiledBackend::kernel(const AttentionParams& params, Isa isa) const noexcept {
  return params.dtype_q == Dtype::kBf16 ? *unit(isa).bf16 : *unit(isa).f32;
}

/// One strip a task is the finest that execute divides a key's rows.
std::int32_t TiledBackend::slots(const AttentionKey& key, const Env& env) const noexcept {
  return plan_slots(env, count_tasks(key.params(), kernel(key.params(), env.isa).width));
}

/// As many strips as leave a quarter of the L2 when two tiles are in it; changes no bits.
std::int64_t TiledBackend::max_strips(const AttentionParams& params,
                                      const Env& env) const noexcept {
  constexpr std::int64_t kUsualL2 = 1 << 20;
  const std::int64_t room = (env.l2_bytes > 0 ? env.l2_bytes : kUsualL2) / 4 * 3;
  const std::int64_t row_bytes =
      saturating_mul(saturating_add(params.head_dim_qk, params.head_dim_v), sizeof(float));
  const std::int64_t tiles =
      saturating_mul(traits_.tile_kv(params.head_dim_qk, params.head_dim_v), row_bytes);
  const std::int64_t strip = saturating_mul(kernel(params, env.isa).width, row_bytes);
  std::int64_t strips = traits_.max_strips;
  while (strips > 1 && saturating_add(saturating_mul(strips, strip), tiles) > room) strips /= 2;
  return strips;
}

/// Fills args but for the problem; returns a slot's bytes, saturating.
std::int64_t TiledBackend::lay_out(const AttentionParams& params, const TiledKernel& kernel,
                                   std::int64_t strips, TiledArgs* args) const noexcept {
  constexpr std::int64_t kBytes = sizeof(float);
  const std::int64_t rows = strips * kernel.width;
  const std::int64_t head_dim_qk = round_up(params.head_dim_qk, kHeadDimUnit);
  const std::int64_t head_dim_v = round_up(params.head_dim_v, kHeadDimUnit);
  args->grid = make_grid(params, rows);
  args->tile_kv = traits_.tile_kv(params.head_dim_qk, params.head_dim_v);
  const bool copies = traits_.copies || params.dtype_kv != Dtype::kF32;
  const std::int64_t copied = copies ? args->tile_kv : 0;
  ScratchLayout layout;
  args->at_strips = layout.take(strips, kernel.strip_bytes);
  args->at_q = layout.take(saturating_mul(rows, head_dim_qk), kBytes);
  args->at_out = layout.take(saturating_mul(rows, head_dim_v), kBytes);
  args->at_scores = layout.take(args->tile_kv * kernel.width, kBytes);
  args->at_keys = layout.take(saturating_mul(copied, head_dim_qk), kBytes);
  args->at_values = layout.take(saturating_mul(copied, head_dim_v), kBytes);
  args->at_row = layout.take(args->tile_kv, kBytes);
  return layout.total();
}

std::int64_t TiledBackend::workspace_bytes(const AttentionKey& key, const Env& env) const {
  TiledArgs args;
  const AttentionParams& params = key.params();
  const std::int64_t slot =
      lay_out(params, kernel(params, env.isa), max_strips(params, env), &args);
  return saturating_mul(slot, slots(key, env));
}

Expected<KernelPlan> TiledBackend::plan(const AttentionKey& key, const Env& env) const {
  const AttentionParams& params = key.params();
  KernelPlan plan;
  plan.isa = unit(env.isa).isa;
  plan.kernel =
      std::string(traits_.name) + "_" + to_string(plan.isa) + "_" + to_string(params.dtype_q);
  plan.slots = slots(key, env);
  plan.tile_q = max_strips(params, env) * kernel(params, env.isa).width;
  plan.tile_kv = traits_.tile_kv(params.head_dim_qk, params.head_dim_v);
  plan.workspace_bytes = workspace_bytes(key, env);
  return plan;
}

Status TiledBackend::execute(const KernelPlan& plan, const AttentionParams& params,
                             const Buffers& buffers, const Launch& launch) const {
  const TiledKernel& k = kernel(params, plan.isa);
  const std::int64_t strips = choose_strips(params, k.width, plan.tile_q / k.width, plan.slots);
  TiledArgs args;
  const std::int64_t slot_bytes = lay_out(params, k, strips, &args);
  args.problem = make_problem(params, buffers);
  const std::int64_t tasks = count_tasks(params, strips * k.width);
  run_tasks({k.forward, &args, tasks, slot_bytes}, plan.slots, launch);
  return Status();
}

}  // namespace regard::cpu

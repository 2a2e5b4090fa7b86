#include "cpu/tiled_backend.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/scratch.h"
#include "cpu/backward/run.h"
#include "cpu/forward/kernels.h"
#include "cpu/run_tasks.h"
#include "cpu/split.h"
#include "problem/make_problem.h"

namespace regard::cpu {

/// How a call is cut into tasks.
struct TiledBackend::Shape {
  const TiledKernel* kernel = nullptr;
  bool is_few = false;              // every sequence has few rows
  bool is_dot = false;              // so few that lanes lie along head_dim
  std::int64_t few_strips = 1;      // of one head's rows, as many of them as count as few
  std::int64_t strips = 1;          // of a task
  std::int64_t heads_per_task = 1;  // of few rows
  std::int64_t tasks = 0;           // of few rows, not counting parts
  std::int64_t parts = 1;           // of a task of few rows, at most

  /// Slots share the parts of a task where tasks are too few to balance.
  bool shares_parts(std::int32_t slots) const noexcept {
    return is_few && parts > 1 && slots > 1 && tasks < 4 * std::int64_t{slots};
  }
  std::int64_t shared_bytes(const TiledArgs& args) const noexcept {
    return saturating_mul(saturating_mul(tasks, parts), args.part_bytes);
  }
};

namespace {

/// One instruction set's kernels.
struct Unit {
  Isa isa;
  const TiledKernel* f32;   // all other inputs, converted
  const TiledKernel* bf16;  // q, k and v all bf16
};

/// Each after those that it includes; the first serves every machine.
constexpr Unit kUnits[] = {
    {Isa::kScalar, &kScalarForward, &kScalarForward},
#if defined(__x86_64__)
    {Isa::kAvx2, &kAvx2Forward, &kAvx2Forward},
    {Isa::kAvx512, &kAvx512Forward, &kAvx512Forward},
#if !defined(REGARD_NO_AVX512_BF16)
    {Isa::kAvx512Bf16, &kAvx512Forward, &kAvx512Bf16Forward},
#endif
#elif defined(__aarch64__)
    {Isa::kNeon, &kNeonForward, &kNeonForward},
    {Isa::kNeonBf16, &kNeonForward, &kNeonBf16Forward},
#endif
};

/// The best unit that runs on a machine of `isa`.
const Unit& unit_of(Isa isa) noexcept {
  const Unit* best = kUnits;
  for (const Unit& unit : kUnits) {
    if (isa.includes(unit.isa)) best = &unit;
  }
  return *best;
}

const TiledKernel& kernel_of(const AttentionParams& params, Isa isa) noexcept {
  // Queries that are descaled as they are packed are not bf16.
  const bool is_bf16 = params.dtype_q == Dtype::kBf16 && params.dtype_kv == Dtype::kBf16 &&
                       !params.features.has(Feature::kDescales);
  return is_bf16 ? *unit_of(isa).bf16 : *unit_of(isa).f32;
}

/// Heads of K and V that one task of few rows reads together: those that are neighbours in memory,
/// as far as tasks and parts still balance; a smaller call takes no more. Changes no bits. A key at
/// a time (8 heads, d 128, 4096 keys) is 1.3 times as fast in f32 as a head at a time.
std::int64_t choose_heads(const AttentionParams& params, std::int64_t parts,
                          std::int32_t slots) noexcept {
  constexpr std::int64_t kMostHeads = 8;
  std::int64_t heads =
      params.layout_k == Layout::kBhsd ? 1 : std::min(params.num_heads_kv, kMostHeads);
  const auto tasks = [&] {
    return saturating_mul(params.batch,
                          saturating_mul(ceil_div(params.num_heads_kv, heads), parts));
  };
  while (heads > 1 && tasks() < 4 * std::int64_t{slots}) heads /= 2;
  return std::max<std::int64_t>(heads, 1);
}

}  // namespace

TiledBackend::TiledBackend(BackendInfo info, const TiledTraits& traits)
    : info_(std::move(info)), traits_(traits) {}

TiledBackend::Shape TiledBackend::shape_of(const AttentionParams& params, Isa isa,
                                           std::int32_t slots) const noexcept {
  Shape shape;
  shape.kernel = &kernel_of(params, isa);
  const std::int64_t width = shape.kernel->width;
  const std::int64_t rows = rows_per_head(params);
  shape.is_few = rows <= kSplitRows;
  shape.is_dot = rows <= shape.kernel->dot_rows;
  shape.few_strips = std::max<std::int64_t>(ceil_div(std::min(rows, kSplitRows), width), 1);
  if (!shape.is_few) return shape;
  shape.parts = traits_.shares_parts ? split_count(params.seqlen_kv) : 1;
  if (shape.is_dot) shape.heads_per_task = choose_heads(params, shape.parts, slots);
  shape.strips = shape.few_strips * shape.heads_per_task;
  const std::int64_t groups = ceil_div(params.num_heads_kv, shape.heads_per_task);
  shape.tasks = rows == 0 ? 0 : saturating_mul(params.batch, groups);
  return shape;
}

/// As many strips as leave an eighth of the L2 when the copies of a tile are in it; changes no
/// bits.
std::int64_t TiledBackend::max_strips(const AttentionParams& params,
                                      const Env& env) const noexcept {
  constexpr std::int64_t kUsualL2 = 1 << 20;
  const std::int64_t room = (env.l2_bytes > 0 ? env.l2_bytes : kUsualL2) / 8 * 7;
  const auto row_bytes = [](std::int64_t head_dims) {
    return saturating_mul(head_dims, sizeof(float));
  };
  const std::int64_t both = saturating_add(params.head_dim_qk, params.head_dim_v);
  const std::int64_t copied = params.dtype_kv == Dtype::kF32 ? params.head_dim_v : both;
  const std::int64_t tile_kv = traits_.tile_kv(params.head_dim_qk, params.head_dim_v);
  const std::int64_t tiles = saturating_mul(tile_kv, row_bytes(copied));
  const std::int64_t strip = saturating_mul(kernel_of(params, env.isa).width, row_bytes(both));
  std::int64_t strips = traits_.max_strips;
  while (strips > 1 && saturating_add(saturating_mul(strips, strip), tiles) > room) strips /= 2;
  return strips;
}

/// One strip, or one part of a head's keys, is the finest that execute divides a call into.
std::int32_t TiledBackend::slots(const AttentionKey& key, const Env& env) const noexcept {
  const AttentionParams& params = key.params();
  const Shape shape = shape_of(params, env.isa, 1);
  if (!shape.is_few) return plan_slots(env, params, count_tasks(params, shape.kernel->width));
  const std::int64_t heads = saturating_mul(params.batch, params.num_heads_kv);
  return plan_slots(env, params, saturating_mul(heads, shape.parts));
}

/// Fills args but for the problem; returns a slot's bytes, saturating.
std::int64_t TiledBackend::lay_out(const AttentionParams& params, const Shape& shape,
                                   TiledArgs* args) const noexcept {
  constexpr std::int64_t kBytes = sizeof(float);
  const TiledKernel& k = *shape.kernel;
  // Bytes of a strip's rows of q or out, in either form; a few rows of a larger call take theirs.
  const auto strip_rows = [&](std::int64_t head_dim) {
    const std::int64_t dot = saturating_mul(dot_rows(k.width), dot_row_size(head_dim));
    const std::int64_t lanes = saturating_mul(k.width, padded_head_dim(head_dim));
    return shape.is_dot ? dot : std::max(dot, lanes);
  };
  const std::int64_t strips = std::max(shape.strips, shape.few_strips);
  const std::int64_t few = shape.is_few ? shape.strips : shape.few_strips;
  const std::int64_t q = strip_rows(params.head_dim_qk), out = strip_rows(params.head_dim_v);
  args->grid = make_grid(params, shape.strips * k.width);
  args->heads_per_task = shape.heads_per_task;
  args->parts_per_task = shape.parts;
  args->tile_kv = traits_.tile_kv(params.head_dim_qk, params.head_dim_v);
  args->copies_values = traits_.copies;
  // Few rows read f32, bf16 and f16 where they are.
  const bool converts =
      shape.is_dot ? size_of(params.dtype_kv) == 1 : params.dtype_kv != Dtype::kF32;
  const bool copies_values = converts || (!shape.is_dot && traits_.copies);
  const std::int64_t copied = shape.is_dot ? kDotTileKv : args->tile_kv;
  const std::int64_t keys = converts ? copied : 0;
  const std::int64_t values = copies_values ? copied : 0;
  ScratchLayout layout;
  args->at_strips = layout.take(strips, k.strip_bytes);
  args->at_q = layout.take(saturating_mul(strips, q), kBytes);
  args->at_out = layout.take(saturating_mul(strips, out), kBytes);
  args->at_block = layout.take(saturating_mul(strips, out), kBytes);
  args->at_totals = layout.take(strips, k.state_bytes);
  args->at_part = layout.take(saturating_mul(few, out), kBytes);
  args->at_states = layout.take(2 * few, k.state_bytes);
  args->at_scores = layout.take(args->tile_kv * k.width, kBytes);
  args->at_keys = layout.take(saturating_mul(keys, padded_head_dim(params.head_dim_qk)), kBytes);
  args->at_values = layout.take(saturating_mul(values, padded_head_dim(params.head_dim_v)), kBytes);
  args->at_row = layout.take(args->tile_kv, kBytes);
  ScratchLayout part;
  part.take(few, k.state_bytes);
  part.take(saturating_mul(few, out), kBytes);
  args->part_bytes = part.total();
  return layout.total();
}

std::int64_t TiledBackend::workspace_bytes(const AttentionKey& key, const Env& env) const {
  const AttentionParams& params = key.params();
  const std::int32_t slot_count = slots(key, env);
  TiledArgs args;
  Shape shape = shape_of(params, env.isa, slot_count);
  if (!shape.is_few) shape.strips = max_strips(params, env);
  const std::int64_t slots_bytes = saturating_mul(lay_out(params, shape, &args), slot_count);
  if (!shape.shares_parts(slot_count)) return slots_bytes;
  return saturating_add(slots_bytes, shape.shared_bytes(args));
}

Expected<KernelPlan> TiledBackend::plan(const AttentionKey& key, const Env& env) const {
  const AttentionParams& params = key.params();
  const Shape shape = shape_of(params, env.isa, 1);
  KernelPlan plan;
  plan.isa = unit_of(env.isa).isa;
  plan.kernel =
      std::string(traits_.name) + "_" + to_string(plan.isa) + "_" + to_string(params.dtype_q);
  if (shape.is_few) plan.kernel += shape.is_dot ? "_dot" : "_few";
  plan.slots = slots(key, env);
  plan.tile_q = max_strips(params, env) * shape.kernel->width;
  plan.tile_kv = traits_.tile_kv(params.head_dim_qk, params.head_dim_v);
  plan.workspace_bytes = workspace_bytes(key, env);
  return plan;
}

Status TiledBackend::execute(const KernelPlan& plan, const AttentionParams& params,
                             const Buffers& buffers, const Launch& launch) const {
  Shape shape = shape_of(params, plan.isa, plan.slots);
  const TiledKernel& k = *shape.kernel;
  if (!shape.is_few) {
    shape.strips = choose_strips(params, k.width, plan.tile_q / k.width, plan.slots);
  }
  TiledArgs args;
  std::int64_t slot_bytes = lay_out(params, shape, &args);
  if (shape.heads_per_task > 1 && slot_bytes * plan.slots > plan.workspace_bytes) {
    // A plan for many rows has room for few rows of one head.
    shape.heads_per_task = 1;
    shape.strips = shape.few_strips;
    shape.tasks = params.batch * params.num_heads_kv;
    slot_bytes = lay_out(params, shape, &args);
  }
  const std::int64_t slots_bytes = slot_bytes * plan.slots;
  make_problem(params, buffers, &args.problem);
  const std::int32_t slots = useful_slots(params, plan.slots);
  if (!shape.is_few) {
    args.grid = with_pieces(params, args.grid, k.width, slots);
    const std::int64_t tasks = count_tasks(params, args.grid);
    run_tasks({k.forward, &args, tasks, slot_bytes}, slots, launch);
  } else if (shape.shares_parts(slots) &&
             slots_bytes + shape.shared_bytes(args) <= plan.workspace_bytes) {
    args.parts = static_cast<char*>(launch.workspace.data) + slots_bytes;
    args.part_runs = slots / std::gcd(shape.tasks, std::int64_t{slots});
    const std::int64_t steps = part_steps(shape.parts, args.part_runs);
    run_tasks({k.few_part, &args, shape.tasks * steps, slot_bytes}, slots, launch);
    run_tasks({k.few_merge, &args, shape.tasks, slot_bytes}, slots, launch);
  } else {
    run_tasks({k.few, &args, shape.tasks, slot_bytes}, slots, launch);
  }
  return Status();
}

const BackwardKernel& TiledBackend::backward_kernel(const AttentionParams& params,
                                                    Isa isa) const noexcept {
  return traits_.one_pass ? one_pass_kernel(params, isa) : backward_kernels(isa).f32;
}

std::int64_t TiledBackend::backward_workspace_bytes(const AttentionKey& key, const Env& env) const {
  return cpu::backward_workspace_bytes(key, env, backward_kernel(key.params(), env.isa));
}

Expected<KernelPlan> TiledBackend::plan_backward(const AttentionKey& key, const Env& env) const {
  return cpu::plan_backward(key, env, backward_kernel(key.params(), env.isa), traits_.name);
}

Status TiledBackend::execute_backward(const KernelPlan& plan, const AttentionParams& params,
                                      const Buffers& buffers, const GradBuffers& gradients,
                                      const Launch& launch) const {
  run_backward(backward_kernel(params, plan.isa), plan, params, buffers, gradients, launch);
  return Status();
}

}  // namespace regard::cpu

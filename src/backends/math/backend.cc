#include "backends/math/backend.h"

#include <algorithm>

#include "backends/math/forward_layout.h"
#include "base/checked.h"
#include "base/scratch.h"
#include "cpu/append.h"
#include "cpu/backward/run.h"
#include "cpu/functions/functions.h"
#include "cpu/packed_rows.h"
#include "cpu/simd/kernel_isa.h"
#include "cpu/threads/packed_blocks.h"
#include "cpu/threads/run_tasks.h"
#include "problem/claims.h"
#include "problem/make_problem.h"

namespace regard::math {
namespace {

constexpr std::int64_t kRows = 48;    // of a task: what one read (and conversion) of K and V serves
constexpr std::int64_t kTileKv = 64;  // a constant, so that no sum's order depends on anything

const cpu::BackwardKernel& backward_kernel_of(const AttentionParams& p, Isa isa) noexcept {
  const cpu::BackwardKernels& kernels = cpu::backward_kernels(isa);
  return p.dtype_q == Dtype::kF64 ? kernels.f64 : kernels.f32;
}

}  // namespace

const Kernel& kernel_of(const AttentionParams& p, Isa machine) noexcept {
  const bool f64 = p.dtype_q == Dtype::kF64;
  const Isa isa = cpu::kernel_isa(machine);
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return f64 ? kAvx512F64 : kAvx512F32;
  if (isa == Isa::kAvx2) return f64 ? kAvx2F64 : kAvx2F32;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return f64 ? kNeonF64 : kNeonF32;
#endif
  static_cast<void>(isa);
  return f64 ? kScalarF64 : kScalarF32;
}

std::int64_t lay_out_forward(const AttentionParams& p, const Kernel& kernel,
                             std::int64_t row_blocks, ForwardArgs* args) noexcept {
  const bool converts = p.features.has(Feature::kPaged) ||  // tiles may lie in several pages
                        p.dtype_k != p.dtype_v ||
                        (p.dtype_k != Dtype::kF32 && p.dtype_k != Dtype::kF64);
  const std::int64_t rows = row_blocks * kernel.width;
  args->row_blocks = row_blocks;
  args->tile_kv = kTileKv;
  ScratchLayout layout;
  args->at_row_blocks = layout.take(row_blocks, kernel.row_block_bytes);
  args->at_q = layout.take(saturating_mul(rows, p.head_dim_qk), kernel.scalar_bytes);
  args->at_out = layout.take(saturating_mul(rows, p.head_dim_v), kernel.scalar_bytes);
  args->at_block = layout.take(saturating_mul(rows, p.head_dim_v), kernel.scalar_bytes);
  args->at_scores = layout.take(saturating_mul(rows, p.seqlen_kv), kernel.scalar_bytes);
  const std::int64_t tile = converts ? kTileKv : 0;
  args->at_tile =
      layout.take(saturating_mul(tile, std::max(p.head_dim_qk, p.head_dim_v)), kernel.scalar_bytes);
  args->at_row = layout.take(kTileKv, kernel.scalar_bytes);
  args->at_registers = layout.take(
      cpu::function_bytes(p, kernel.width, kernel.lanes, kernel.scalar_bytes, false), 1);
  return std::max(layout.total(), cpu::append_scratch_bytes(p));
}

namespace {

BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kMath;
  info.summary = "unfused and deterministic: scores, softmax, product; every feature, any head_dim";
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::cpu_forward_claims();
  info.forward.features.set(Feature::kScoresOut);
  info.forward.dtypes.push_back({Dtype::kF64, Dtype::kF64, Dtype::kF64, 3e-15});
  info.backward = problem::cpu_backward_claims(info.forward);
  info.backward.dtypes.push_back({Dtype::kF64, Dtype::kF64, Dtype::kF64, 6e-15});
  return info;
}

/// Row blocks of a task: no more than a head has rows for, so that scratch has none that stays
/// empty.
std::int64_t row_blocks_of(const AttentionParams& p, const Kernel& kernel,
                           std::int32_t workers) noexcept {
  const std::int64_t filled = ceil_div(cpu::rows_per_head(p), kernel.width);
  const std::int64_t max = std::clamp<std::int64_t>(filled, 1, kRows / kernel.width);
  return cpu::choose_row_blocks(p, kernel.width, max, workers);
}

class MathBackend final : public Backend {
 public:
  const BackendInfo& info() const override { return info_; }

  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    const bool claimed = check_claims(info_, key, env, refusals);
    const FeatureSet features = key.params().features;
    if (!features.has(Feature::kScoresOut) || !features.has(Feature::kPacked)) return claimed;
    if (refusals != nullptr) {
      refusals->push_back({RefusalCode::kFeature,
                           "only without packed",
                           "scores_out",
                           {Fix::Op::kClear, "scores_out", ""}});
    }
    return false;
  }

  std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const override {
    ForwardArgs args;
    const Kernel& kernel = kernel_of(key.params(), env.isa);
    const std::int64_t row_blocks = row_blocks_of(key.params(), kernel, workers(key, env));
    return saturating_add(saturating_add(problem::rotated_queries_bytes(key.params()),
                                         cpu::packed_blocks_bytes(key.params())),
                          saturating_mul(lay_out_forward(key.params(), kernel, row_blocks, &args),
                                         workers(key, env)));
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    KernelPlan plan;
    plan.isa = cpu::kernel_isa(env.isa);
    plan.kernel =
        std::string("math_") + to_string(plan.isa) + "_" + to_string(key.params().dtype_q);
    plan.workers = workers(key, env);
    plan.tile_q = kRows;
    plan.tile_kv = kTileKv;
    plan.workspace_bytes = workspace_bytes(key, env);
    return plan;
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    const Kernel& kernel = kernel_of(params, plan.isa);
    ForwardArgs args;
    const std::int64_t row_blocks = row_blocks_of(params, kernel, plan.workers);
    const std::int64_t worker_bytes = lay_out_forward(params, kernel, row_blocks, &args);
    problem::Functions functions;
    problem::make_problem(params, buffers, &args.problem, &functions);
    cpu::clear_amax(args.problem.out_amax, 1);
    args.functions = &cpu::function_kernel(plan.isa, kernel.scalar_bytes);
    const problem::Problem& p = args.problem;
    args.grid = cpu::make_grid(params, row_blocks * kernel.width);
    const Launch behind_queries = cpu::behind_rotated_queries(params, launch);
    cpu::count_packed_blocks(p, p.q.starts, p.group_size, behind_queries, &args.grid);
    const std::int64_t tasks = cpu::count_tasks(params, args.grid);
    const std::int32_t workers = cpu::useful_workers(params, plan.workers);
    const Launch rest = cpu::behind_packed_blocks(params, behind_queries);
    cpu::append_and_rotate(&args.problem, launch.workspace.data, {workers, worker_bytes, rest});
    cpu::run_tasks({kernel.forward, &args, tasks, worker_bytes}, workers, rest);
    cpu::clear_outputs_past_end(p);
    return Status();
  }

  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env) const override {
    return cpu::backward_workspace_bytes(key, env, backward_kernel_of(key.params(), env.isa),
                                         kInt64Max);
  }

  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    return cpu::plan_backward(key, env, backward_kernel_of(key.params(), env.isa), "math");
  }

  Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                          const Buffers& buffers, const GradBuffers& gradients,
                          const Launch& launch) const override {
    const cpu::BackwardKernel& kernel = backward_kernel_of(params, plan.isa);
    cpu::run_backward(kernel, plan, params, buffers, gradients, launch);
    return Status();
  }

 private:
  /// One row block a task is the finest that execute divides a key's rows.
  static std::int32_t workers(const AttentionKey& key, const Env& env) noexcept {
    const std::int64_t width = kernel_of(key.params(), env.isa).width;
    return cpu::plan_workers(env, key.params(), cpu::count_tasks(key.params(), width));
  }

  BackendInfo info_ = make_info();
};

}  // namespace

const Backend& backend() {
  static const MathBackend instance;
  return instance;
}

}  // namespace regard::math

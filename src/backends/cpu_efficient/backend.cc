#include "backends/cpu_efficient/backend.h"

#include <algorithm>

#include "backends/cpu_efficient/kernel.h"
#include "base/checked.h"
#include "cpu/claims.h"
#include "cpu/kernel_isa.h"
#include "cpu/make_problem.h"
#include "cpu/run_tasks.h"
#include "cpu/scratch.h"

namespace regard::efficient {
namespace {

constexpr std::int64_t kMaxStrips = 4;
constexpr std::int64_t kScalarBytes = 4;  // the arithmetic is f32

/// `isa`: one that cpu::kernel_isa gave.
const Kernel& kernel_of(Isa isa) noexcept {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return kAvx2Kernel;
#endif
  static_cast<void>(isa);
  return kScalarKernel;
}

/// Keys of a tile: a function of head_dim alone. 64 keys of 128 floats are 32 KB, an L1; larger
/// head dims halve it while the converted tiles of 16-bit inputs (8 * tile_kv * head_dim bytes)
/// would pass 512 KB, half of the 1 MB a slot that EFFICIENT promises. Multiples of 8: dropout
/// draws by 8 keys.
std::int64_t tile_kv_of(const AttentionParams& p) noexcept {
  const std::int64_t head_dim = std::max(p.head_dim_qk, p.head_dim_v);
  std::int64_t tile_kv = 64;
  while (tile_kv > 8 && head_dim > 512 * 1024 / (tile_kv * 2 * kScalarBytes)) tile_kv /= 2;
  return tile_kv;
}

/// Fills the offsets of args; returns a slot's bytes.
std::int64_t lay_out(const AttentionParams& p, const Kernel& kernel, std::int64_t strips,
                     ForwardArgs* args) noexcept {
  const bool converts = p.dtype_kv != Dtype::kF32;
  const std::int64_t rows = strips * kernel.width;
  args->strips = strips;
  args->tile_kv = tile_kv_of(p);
  cpu::ScratchLayout layout;
  args->at_strips = layout.take(strips, kernel.strip_bytes);
  args->at_q = layout.take(saturating_mul(rows, p.head_dim_qk), kScalarBytes);
  args->at_out = layout.take(saturating_mul(rows, p.head_dim_v), kScalarBytes);
  args->at_scores = layout.take(args->tile_kv * kernel.width, kScalarBytes);
  const std::int64_t tile = converts ? args->tile_kv : 0;
  args->at_keys = layout.take(saturating_mul(tile, p.head_dim_qk), kScalarBytes);
  args->at_values = layout.take(saturating_mul(tile, p.head_dim_v), kScalarBytes);
  args->at_row = layout.take(std::max(p.head_dim_qk, args->tile_kv), kScalarBytes);
  return layout.total();
}

BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kEfficient;
  info.summary =
      "tiled online softmax that reads its inputs in place; extra memory is independent of length";
  info.determinism = Determinism::kBatchInvariant;
  info.forward = cpu::forward_claims();
  info.forward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 2e-6},
                         {Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 4e-3},
                         {Dtype::kBf16, Dtype::kBf16, Dtype::kF32, 2e-6},
                         {Dtype::kF16, Dtype::kF16, Dtype::kF16, 5e-4},
                         {Dtype::kF16, Dtype::kF16, Dtype::kF32, 2e-6}};
  return info;
}

class EfficientBackend final : public Backend {
 public:
  const BackendInfo& info() const override { return info_; }

  std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const override {
    ForwardArgs args;
    const Kernel& kernel = kernel_of(cpu::kernel_isa(env.isa));
    const std::int64_t slot = lay_out(key.params(), kernel, kMaxStrips, &args);
    return saturating_mul(slot, slots(key, env));
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    KernelPlan plan;
    plan.isa = cpu::kernel_isa(env.isa);
    plan.kernel =
        std::string("efficient_") + to_string(plan.isa) + "_" + to_string(key.params().dtype_q);
    plan.slots = slots(key, env);
    plan.tile_q = kMaxStrips * kernel_of(plan.isa).width;
    plan.tile_kv = tile_kv_of(key.params());
    plan.workspace_bytes = workspace_bytes(key, env);
    return plan;
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    ForwardArgs args;
    const Kernel& kernel = kernel_of(plan.isa);
    const std::int64_t width = kernel.width;
    const std::int64_t strips = cpu::choose_strips(params, width, plan.tile_q / width, plan.slots);
    const std::int64_t slot_bytes = lay_out(params, kernel, strips, &args);
    args.problem = cpu::make_problem(params, buffers);
    args.grid = cpu::make_grid(params, strips * width);
    const std::int64_t tasks = cpu::count_tasks(params, strips * width);
    cpu::run_tasks({kernel.forward, &args, tasks, slot_bytes}, plan.slots, launch);
    return Status();
  }

 private:
  /// One strip a task is the finest that execute divides a key's rows.
  static std::int32_t slots(const AttentionKey& key, const Env& env) noexcept {
    const std::int64_t width = kernel_of(cpu::kernel_isa(env.isa)).width;
    return cpu::plan_slots(env, cpu::count_tasks(key.params(), width));
  }

  BackendInfo info_ = make_info();
};

}  // namespace

const Backend& backend() {
  static const EfficientBackend instance;
  return instance;
}

}  // namespace regard::efficient

#include "cpu/backward/run.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "base/checked.h"
#include "base/scratch.h"
#include "cpu/backward/captured.h"
#include "cpu/functions/functions.h"
#include "cpu/kv_operand.h"
#include "cpu/packed_rows.h"
#include "cpu/simd/kernel_isa.h"
#include "cpu/threads/packed_blocks.h"
#include "cpu/threads/run_tasks.h"
#include "problem/make_problem.h"

namespace regard::cpu {
namespace {

/// Keys of a tile, constants, so that no sum's order depends on anything. One pass gains up to 3 %
/// by longer ones; in two passes their sums would take more of the L2.
constexpr std::int64_t kOnePassTile = kBlockKeys, kTwoPassTile = 64;

/// Bytes that the head workspaces of heads may take together, but for one that is larger by itself:
/// workers without one help with the heads of others, which are long then. 64 workers, 16,384
/// tokens, d 128 in f32 had 4.8 GB.
constexpr std::int64_t kHeadsBytes = std::int64_t{1} << 30;

std::int64_t tile_keys(const BackwardKernel& kernel) noexcept {
  return kernel.is_one_pass() ? kOnePassTile : kTwoPassTile;
}

std::int64_t heads_per_group(const AttentionParams& p) noexcept {
  return p.num_heads_kv > 0 ? std::max<std::int64_t>(p.num_heads_q / p.num_heads_kv, 1) : 1;
}

std::int64_t count_heads(const AttentionParams& p) noexcept {
  return saturating_mul(p.batch, p.num_heads_kv);
}

/// Rows that one pass takes together: their probabilities, packed rows and columns, 300 to 500 KB,
/// stay in an L2 with a tile of K and V. A function of head dims alone: sums over rows are in
/// groups.
std::int64_t group_rows(const AttentionParams& p) noexcept {
  const std::int64_t head_dim = std::max(p.head_dim_qk, p.head_dim_v);
  return head_dim <= 128 ? 192 : head_dim <= 256 ? 96 : 48;
}

/// head_dim in whole vectors.
std::int64_t columns(const BackwardKernel& kernel, std::int64_t head_dim) noexcept {
  return saturating_mul(ceil_div(head_dim, kernel.lanes), kernel.lanes);
}

/// Operands of head_dim elements in whole steps.
std::int64_t operands(const BackwardKernel& kernel, std::int64_t elements) noexcept {
  return saturating_mul(ceil_div(elements, kernel.step), kernel.step / kernel.pack);
}

/// The offsets within what is kept of a row block, and within what it makes of a tile.
void lay_out_row_block(const AttentionParams& p, const BackwardKernel& kernel,
                       BackwardArgs* args) noexcept {
  const std::int64_t width = kernel.width, bytes = kernel.scalar_bytes, pack = kernel.pack;
  ScratchLayout rows;
  args->at_row_block = rows.take(1, kernel.row_block_bytes);
  args->at_q = rows.take(saturating_mul(width, operands(kernel, p.head_dim_qk)), bytes);
  args->at_d_out = rows.take(saturating_mul(width, operands(kernel, p.head_dim_v)), bytes);
  args->at_q_rows = rows.take(saturating_mul(width / pack, columns(kernel, p.head_dim_qk)), bytes);
  args->at_d_out_rows =
      rows.take(saturating_mul(width / pack, columns(kernel, p.head_dim_v)), bytes);
  args->row_block_bytes = rows.total();
  ScratchLayout scores;
  args->at_probs = scores.take(args->tile_kv * width, bytes);
  args->at_d_scores = scores.take(args->tile_kv * width, bytes);
  const bool has_function = p.features.has(Feature::kScoreFunction);
  const bool has_host = p.features.has(Feature::kScoreCallback);
  const bool keeps_capped = p.softcap > 0.0 || has_function || has_host;
  args->at_capped = scores.take(keeps_capped ? args->tile_kv * width : 0, bytes);
  args->at_before_host = args->at_capped;
  if (has_function && has_host) args->at_before_host = scores.take(args->tile_kv * width, bytes);
  args->at_seen = scores.take(2, sizeof(std::int64_t));
  args->score_bytes = scores.total();
}

/// Pairs of a tile's keys.
std::int64_t paired_keys(const BackwardKernel& kernel) noexcept {
  return kernel.pack > 1 ? tile_keys(kernel) / kernel.pack : 0;
}

/// The offsets within what is copied of a tile.
void lay_out_tile(const AttentionParams& p, const BackwardKernel& kernel,
                  BackwardArgs* args) noexcept {
  const bool converts = p.dtype_k != Dtype::kF32 && p.dtype_k != Dtype::kF64;
  const std::int64_t bytes = kernel.scalar_bytes;
  const std::int64_t copied = args->copies_tiles || converts ? args->tile_kv : 0;
  const std::int64_t paired = paired_keys(kernel);
  const std::int64_t of_keys = operands(kernel, padded_head_dim(p.head_dim_qk));
  ScratchLayout tile;
  args->at_tile_state = tile.take(1, kernel.packed_bytes);
  args->at_keys = tile.take(saturating_mul(copied, of_keys), bytes);
  args->at_values =
      tile.take(saturating_mul(copied, operands(kernel, padded_head_dim(p.head_dim_v))), bytes);
  args->at_keys_t = tile.take(saturating_mul(paired, of_keys * kernel.pack), bytes);
  args->tile_bytes = tile.total();
}

/// Fills args but for the problem and what one pass adds; all bytes saturate.
void lay_out(const AttentionParams& p, const BackwardKernel& kernel, BackwardArgs* args) noexcept {
  const std::int64_t width = kernel.width, bytes = kernel.scalar_bytes;
  const bool one_pass = kernel.is_one_pass();
  args->grid = make_grid(p, width);
  args->tile_kv = tile_keys(kernel);
  args->queries_per_task = std::max<std::int64_t>(width / heads_per_group(p), 1);
  args->copies_tiles = one_pass;
  args->row_blocks = one_pass ? std::max<std::int64_t>(group_rows(p) / width, 1) : 1;
  lay_out_row_block(p, kernel, args);
  lay_out_tile(p, kernel, args);
  const std::int64_t summed = one_pass ? 0 : args->tile_kv;
  const std::int64_t sums_q = one_pass ? 0 : saturating_mul(width, padded_head_dim(p.head_dim_qk));
  const bool has_bias = p.features.has(Feature::kAttnBias);
  const bool has_sinks = p.features.has(Feature::kSinks);
  const bool has_captured = p.features.has(Feature::kCaptured);
  // One pass reads a tile of its own for the sums of rows of 16 or 8 bits (needs_exact_delta) and
  // for biases and captured tensors, beside the scores of one row block: where those of the others
  // of a group are.
  const bool is_rounded = p.dtype_out != Dtype::kF32 && p.dtype_out != Dtype::kF64;
  const bool reads_tile = !one_pass || is_rounded || has_bias || has_captured;
  const std::int64_t own_tile = reads_tile ? args->tile_bytes : 0;
  ScratchLayout layout;
  args->at_tile = layout.take(1, args->score_bytes) + args->score_bytes;
  layout.take(1, std::max(saturating_mul(args->row_blocks - 1, args->score_bytes), own_tile));
  const bool in_scratch = !one_pass || has_bias || has_sinks || has_captured;
  args->at_rows = layout.take(in_scratch ? 1 : 0, args->row_block_bytes);
  args->at_weights = layout.take(paired_keys(kernel) * width, bytes);
  const bool has_host = p.features.has(Feature::kScoreCallback);
  args->at_row = layout.take(has_host ? 2 * args->tile_kv : args->tile_kv, bytes);
  args->at_registers = layout.take(function_bytes(p, width, kernel.lanes, bytes, true), 1);
  args->at_out = layout.take(saturating_mul(width, operands(kernel, p.head_dim_v)), bytes);
  args->at_d_q = layout.take(sums_q, bytes);
  args->at_d_k = layout.take(saturating_mul(summed, columns(kernel, p.head_dim_qk)), bytes);
  args->at_d_v = layout.take(saturating_mul(summed, columns(kernel, p.head_dim_v)), bytes);
  const std::int64_t of_bias =
      saturating_mul(args->queries_per_task, saturating_mul(heads_per_group(p), args->tile_kv));
  args->at_d_bias = layout.take(has_bias ? of_bias : 0, sizeof(double));
  args->scratch_bytes = layout.total();
}

HeadGrid head_grid(const AttentionParams& p, std::int64_t width) noexcept {
  return cpu::head_grid(rows_per_head(p), p.seqlen_kv, width);
}

/// Workers that one head can occupy: the chains of its pairs.
std::int64_t count_chains(const HeadGrid& grid) noexcept {
  return std::max<std::int64_t>(std::min(saturating_mul(grid.row_blocks, grid.key_ranges),
                                         saturating_mul(grid.key_blocks, grid.row_ranges)),
                                1);
}

/// Key blocks of a work item: three share one read of the rows, 1.03 times as fast at head_dim 64
/// and 128 with one thread, but fewer where workers would want for chains.
std::int64_t choose_blocks_per_item(const AttentionParams& p, std::int64_t width,
                                    std::int32_t workers) noexcept {
  constexpr std::int64_t kMax = 3;
  const HeadGrid grid = head_grid(p, width);
  const std::int64_t heads = std::max<std::int64_t>(count_heads(p), 1);
  if (workers == 1) return kMax;
  std::int64_t blocks = kMax;
  while (blocks > 1 &&
         saturating_mul(heads, saturating_mul(count_runs(grid, blocks), count_grids(grid))) <
             4 * std::int64_t{workers}) {
    --blocks;
  }
  return blocks;
}

/// What one pass adds, after lay_out: the heads' head workspaces, and the offsets within one.
void lay_out_heads(const AttentionParams& p, const BackwardKernel& kernel, std::int32_t workers,
                   BackwardArgs* args) noexcept {
  const std::int64_t block_rows = task_row_blocks(kernel.width) * kernel.width;
  const std::int64_t row_blocks = ceil_div(rows_per_head(p), block_rows);
  const std::int64_t key_blocks = ceil_div(p.seqlen_kv, kBlockKeys);
  // Of lengths within these extents.
  const std::int64_t rows = saturating_mul(max_summed_blocks(row_blocks, key_blocks), block_rows);
  const std::int64_t summed = max_summed_blocks(key_blocks, row_blocks);
  const std::int64_t keys = saturating_mul(summed, kBlockKeys);
  const std::int64_t bytes = kernel.scalar_bytes;
  ScratchLayout layout;
  args->at_row_blocks =
      layout.take(ceil_div(rows_per_head(p), kernel.width), args->row_block_bytes);
  args->at_tiles = layout.take(key_blocks, args->tile_bytes);
  args->at_sum_q = layout.take(saturating_mul(rows, padded_head_dim(p.head_dim_qk)), bytes);
  args->at_sum_k = layout.take(saturating_mul(keys, columns(kernel, p.head_dim_qk)), bytes);
  args->at_sum_v = layout.take(saturating_mul(keys, columns(kernel, p.head_dim_v)), bytes);
  args->blocks = std::max(row_blocks, key_blocks);
  args->at_progress = layout.take(1, sizeof(HeadProgress));
  args->at_flags = layout.take(saturating_mul(2, args->blocks), sizeof(std::int64_t));
  args->at_done = layout.take(summed, sizeof(std::int64_t));
  args->head_bytes = layout.total();
  args->all_heads = count_heads(p);
  const std::int64_t within = kHeadsBytes / std::max<std::int64_t>(args->head_bytes, 1);
  args->head_workspaces =
      std::min({args->all_heads, std::int64_t{workers}, std::max<std::int64_t>(within, 1)});
  args->blocks_per_item = choose_blocks_per_item(p, kernel.width, workers);
  args->workers = workers;
}

std::int32_t backward_workers(const AttentionKey& key, const Env& env,
                              const BackwardKernel& kernel) noexcept {
  const AttentionParams& p = key.params();
  if (!kernel.is_one_pass()) {
    return plan_workers(
        env, p,
        std::max(count_tasks(p, kernel.width), count_tasks(p, make_key_grid(p, kTwoPassTile))));
  }
  const std::int64_t chains = count_chains(head_grid(p, kernel.width));
  return plan_workers(env, p, saturating_mul(count_heads(p), chains));
}

/// What workers share of the heads of one pass.
struct Heads {
  const BackwardArgs* args;
  BackwardFn head;
  std::atomic<std::int64_t> owners{
      0};  // workers that have a head workspace, and those that came too late
  std::atomic<std::int64_t> next{0};  // head to take
};

/// The passes of one call.
class Passes {
 public:
  Passes(const BackwardArgs& args, std::int32_t workers, const Launch& launch)
      : args_(args), workers_(workers), launch_(launch) {}

  void run(BackwardFn pass, std::int64_t tasks) const {
    run_tasks({pass, &args_, tasks, args_.scratch_bytes}, workers_, launch_);
  }
  /// Of tasks that wait for each other.
  void run(BackwardFn pass, std::int64_t tasks, const Heads& heads) const {
    run_tasks({pass, &heads, tasks, args_.scratch_bytes, /*wait_for_each_other=*/true}, workers_,
              launch_);
  }

 private:
  const BackwardArgs& args_;
  std::int32_t workers_;
  const Launch& launch_;
};

/// A worker: the first that come have a head workspace each and take whole heads; then, and the
/// others from the start, they help with heads under way. A helper ends when no head is left
/// to take part in, and owners begun before take those, so workers may also run one after another.
void run_heads(const void* opaque, std::int64_t, char* scratch) {
  Heads& heads = *const_cast<Heads*>(static_cast<const Heads*>(opaque));
  BackwardArgs args = *heads.args;
  const std::int64_t head_workspace = heads.owners.fetch_add(1, std::memory_order_relaxed);
  // The kernel takes the memory by its worker's number.
  if (head_workspace < args.head_workspaces)
    args.scratch = scratch - head_workspace * args.scratch_bytes;
  while (head_workspace < args.head_workspaces) {
    const TaskRange range = take_tasks(&heads.next, args.all_heads, args.head_workspaces);
    if (range.begin >= range.end) break;
    for (std::int64_t head = range.begin; head < range.end; ++head) {
      heads.head(&args, head, scratch);
    }
  }
  if (args.blocks > 1) heads.head(&args, args.all_heads, scratch);
}

/// d_q, d_k and d_v in one pass: each worker takes whole heads, then helps with those of others.
void run_one_pass(const BackwardKernel& kernel, std::int32_t workers, const Passes& passes,
                  BackwardArgs* args) {
  if (args->blocks == 0) return;
  for (std::int64_t i = 0; i < args->head_workspaces; ++i) {
    new (&progress_of(*args, args->heads + i * args->head_bytes)) HeadProgress{};
  }
  std::int64_t heads_left = args->all_heads;
  args->heads_left = &heads_left;
  Heads heads{args, kernel.head, {}, {}};
  const bool may_help = args->blocks > 1;
  passes.run(run_heads, may_help ? workers : std::min<std::int64_t>(workers, args->head_workspaces),
             heads);
}

#if defined(REGARD_HAS_AMX)
/// A register has 32 elements of head_dim; functions have kernels of another width.
bool suits_amx(const AttentionParams& p) noexcept {
  const bool has_functions = p.features.has(Feature::kScoreFunction) ||
                             p.features.has(Feature::kScoreCallback) ||
                             p.features.has(Feature::kMaskFunction);
  return std::min(p.head_dim_qk, p.head_dim_v) >= 16 && !has_functions;
}
#endif

Isa isa_of(const BackwardKernel& kernel, Isa isa) noexcept {
#if defined(REGARD_HAS_AMX)
  if (&kernel == &kAmxBf16Backward) return Isa::kAmxBf16;
#endif
  return kernel.pack > 1 ? pairs_isa() : kernel_isa(isa);
}

}  // namespace

const BackwardKernels& backward_kernels(Isa isa) noexcept {
#if defined(__x86_64__)
  if (kernel_isa(isa) == Isa::kAvx512) return kAvx512Backward;
  if (kernel_isa(isa) == Isa::kAvx2) return kAvx2Backward;
#elif defined(__aarch64__)
  if (kernel_isa(isa) == Isa::kNeon) return kNeonBackward;
#endif
  static_cast<void>(isa);
  return kScalarBackward;
}

const BackwardKernel& one_pass_kernel(const AttentionParams& p, Isa isa) noexcept {
  const bool is_bf16 = p.dtype_q == Dtype::kBf16 && p.dtype_k == Dtype::kBf16 &&
                       p.dtype_out == Dtype::kBf16 && !p.features.has(Feature::kDescales);
#if defined(__x86_64__) && !defined(REGARD_NO_AVX512_BF16)
#if defined(REGARD_HAS_AMX)
  if (is_bf16 && isa.includes(Isa::kAmxBf16) && suits_amx(p)) return kAmxBf16Backward;
#endif
  // CPUs with AMX multiply f32 at twice the rate of pairs.
  const bool has_fast_pairs = isa.includes(Isa::kAvx512Bf16) && !isa.includes(Isa::kAmxBf16);
  if (is_bf16 && has_fast_pairs) return kAvx512Bf16Backward;
#elif defined(__aarch64__)
  if (is_bf16 && isa.includes(Isa::kNeonBf16)) return kNeonBf16Backward;
#endif
  static_cast<void>(is_bf16);
  return backward_kernels(isa).one_pass_f32;
}

std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env,
                                      const BackwardKernel& kernel,
                                      std::int64_t max_bytes) noexcept {
  BackwardArgs args;
  const AttentionParams& params = key.params();
  const std::int32_t workers = backward_workers(key, env, kernel);
  lay_out(params, kernel, &args);
  const std::int64_t scratch =
      saturating_add(packed_blocks_bytes(params), saturating_mul(args.scratch_bytes, workers));
  // Where heads have theirs, one pass after the other.
  const std::int64_t captured = captured_bytes(params);
  if (!kernel.is_one_pass()) return saturating_add(scratch, captured);
  lay_out_heads(params, kernel, workers, &args);
  // max_bytes less the scratch may be below 0: then one head's memory is the fewest.
  const std::int64_t within = (max_bytes - scratch) / std::max<std::int64_t>(args.head_bytes, 1);
  const std::int64_t head_workspaces =
      std::min(args.head_workspaces, std::max<std::int64_t>(within, 1));
  const std::int64_t heads = saturating_mul(head_workspaces, args.head_bytes);
  return saturating_add(scratch, std::max(heads, captured));
}

KernelPlan plan_backward(const AttentionKey& key, const Env& env, const BackwardKernel& kernel,
                         const std::string& backend) {
  KernelPlan plan;
  plan.isa = isa_of(kernel, env.isa);
  plan.kernel =
      backend + "_backward_" + to_string(plan.isa) + "_" + to_string(key.params().dtype_q);
  plan.workers = backward_workers(key, env, kernel);
  plan.tile_q = kernel.is_one_pass() ? group_rows(key.params()) : kernel.width;
  plan.tile_kv = tile_keys(kernel);
  plan.workspace_bytes = backward_workspace_bytes(key, env, kernel, kInt64Max);
  return plan;
}

void run_backward(const BackwardKernel& kernel, const KernelPlan& plan,
                  const AttentionParams& params, const Buffers& buffers,
                  const GradBuffers& gradients, const Launch& launch) {
  BackwardArgs args;
  lay_out(params, kernel, &args);
  Functions functions;
  make_grad_problem(params, buffers, gradients, &args.grad, &functions);
  clear_amax(args.grad.gradient_amax, 3);
  args.functions = &function_kernel(plan.isa, kernel.scalar_bytes);
  const std::int32_t workers = useful_workers(params, plan.workers);
  const Launch rest = behind_packed_blocks(params, launch);
  const Passes passes(args, workers, rest);
  const bool wants_keys = gradients.d_k.present() || gradients.d_v.present();
  if (kernel.is_one_pass()) {
    lay_out_heads(params, kernel, workers, &args);
    // A call smaller than the plan's has room for more heads than the plan has memory.
    const std::int64_t left =
        plan.workspace_bytes - packed_blocks_bytes(params) - args.scratch_bytes * workers;
    if (args.head_bytes > 0)
      args.head_workspaces = std::min(args.head_workspaces, left / args.head_bytes);
    args.scratch = static_cast<const char*>(rest.workspace.data);
    args.interrupt = launch.interrupt;
    args.heads = static_cast<char*>(rest.workspace.data) + args.scratch_bytes * workers;
    if (gradients.d_q.present() || wants_keys) run_one_pass(kernel, workers, passes, &args);
  } else {
    const Problem& p = args.grad.problem;
    if (gradients.d_q.present()) {
      count_packed_blocks(p, p.q.starts, p.group_size, launch, &args.grid);
      passes.run(kernel.d_queries, count_tasks(params, args.grid));
    }
    if (wants_keys) {
      args.key_grid = make_key_grid(params, kTwoPassTile);
      count_packed_blocks(p, key_starts(p), 1, launch, &args.key_grid);
      passes.run(kernel.d_keys, count_tasks(params, args.key_grid));
    }
  }
  if (gradients.d_bias.present()) {
    const BiasGrid grid = bias_grid(args);
    passes.run(kernel.d_bias, grid.batches * grid.heads_kv * grid.query_blocks * grid.key_tiles);
  }
  if (gradients.d_sinks.present()) passes.run(kernel.d_sinks, params.num_heads_q);
  lay_out_captured(&args);
  char* const sums = static_cast<char*>(rest.workspace.data) + args.scratch_bytes * workers;
  args.captured_sums = reinterpret_cast<double*>(sums);
  for (; args.captured_begin < args.captured_elements; args.captured_begin += args.captured_size) {
    passes.run(kernel.d_captured, args.captured_slices);
    passes.run(sum_captured, count_captured_sums(args));
  }
  clear_gradients_past_end(args.grad);
}

}  // namespace regard::cpu

#include "cpu/tiled_backend.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/message.h"
#include "base/scratch.h"
#include "cpu/append.h"
#include "cpu/backward/run.h"
#include "cpu/forward/kernels.h"
#include "cpu/functions/functions.h"
#include "cpu/packed_rows.h"
#include "cpu/split.h"
#include "cpu/task_sizes.h"
#include "cpu/threads/packed_blocks.h"
#include "cpu/threads/run_tasks.h"
#include "problem/make_problem.h"

namespace regard::cpu {

/// How a call is cut into tasks.
struct TiledBackend::Shape {
  const TiledKernel* kernel = nullptr;
  const TiledVariant* variant = nullptr;
  std::int64_t rows = 0;            // of the longest sequence's head
  bool is_decode = false;           // every sequence has decode rows alone
  bool is_decode_kernel = false;    // so few that lanes lie along head_dim
  std::int64_t few_row_blocks = 1;  // of one head's rows, as many of them as count as few
  std::int64_t row_blocks = 1;      // of a task
  std::int64_t heads_per_task = 1;  // of decode rows
  std::int64_t tasks = 0;           // of decode rows, not counting splits
  std::int64_t splits = 1;          // of a task, at most
  std::int64_t block_rows = 0;      // of a task of more rows
  // More rows may come in splits; a worker has room for one, and workers may share so many row
  // blocks.
  bool splits_blocks = false;
  std::int64_t split_row_blocks = 0;
  bool has_outs = false;  // also where all rows end in one tile

  /// Rows of a task that is not of decode rows.
  void set_block(std::int64_t most_rows) noexcept {
    block_rows = most_rows;
    row_blocks = ceil_div(std::min(most_rows, rows), kernel->width);
  }
  /// Workers share the splits of a task where tasks are too few to balance.
  bool shares_splits(std::int32_t workers) const noexcept {
    return (is_decode ? splits > 1 && variant->shares_splits : split_row_blocks > 0) &&
           workers > 1 && tasks < 4 * std::int64_t{workers};
  }
  /// Whether a block's splits are tasks.
  bool divides_blocks(std::int32_t workers) const noexcept {
    return !is_decode && splits > 1 && shares_splits(workers);
  }
  /// Of decode rows; of more rows, whatever lengths and blocks there are within the extents.
  std::int64_t shared_bytes(const TiledArgs& args) const noexcept {
    if (is_decode) return saturating_mul(saturating_mul(tasks, splits), args.split_bytes);
    return saturating_mul(split_row_blocks, args.split_bytes);
  }
};

namespace {

/// One instruction set's kernels.
struct Unit {
  Isa isa;
  const TiledKernel* f32;   // all other inputs, converted
  const TiledKernel* bf16;  // q, k and v all bf16
  bool has_pairs = false;   // the latter's queries and copies are pairs of bf16
};

/// Each after those that it includes; the first serves every machine.
constexpr Unit kUnits[] = {
    {Isa::kScalar, &kScalarForward, &kScalarForward},
#if defined(__x86_64__)
    {Isa::kAvx2, &kAvx2Forward, &kAvx2Forward},
    {Isa::kAvx512, &kAvx512Forward, &kAvx512Forward},
#if !defined(REGARD_NO_AVX512_BF16)
    {Isa::kAvx512Bf16, &kAvx512Bf16FloatForward, &kAvx512Bf16Forward, true},
#endif
#if defined(REGARD_HAS_AMX)
    {Isa::kAmxBf16, &kAvx512Bf16FloatForward, &kAmxBf16Forward},
#endif
#elif defined(__aarch64__)
    {Isa::kNeon, &kNeonForward, &kNeonForward},
    {Isa::kNeonBf16, &kNeonForward, &kNeonBf16Forward, true},
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

/// Whether sequences may have fewer rows than the extents say.
bool has_shorter_rows(const AttentionParams& params) noexcept {
  return params.features.has(Feature::kPacked) || params.features.has(Feature::kSeqlensQ);
}

bool is_of_pairs(const TiledKernel& kernel) noexcept {
  return std::ranges::any_of(
      kUnits, [&](const Unit& unit) { return unit.has_pairs && unit.bf16 == &kernel; });
}

}  // namespace

const TiledKernel& kernel_of(const AttentionParams& params, Isa isa) noexcept {
  // Queries that are descaled as they are packed are not bf16.
  const bool is_bf16 = params.dtype_q == Dtype::kBf16 && params.dtype_k == Dtype::kBf16 &&
                       params.dtype_v == Dtype::kBf16 && !params.features.has(Feature::kDescales);
  return is_bf16 ? *unit_of(isa).bf16 : *unit_of(isa).f32;
}

namespace {

constexpr TiledVariant kDefaultVariant{};

/// docs/dev/decisions/cpu.md has what was measured of these and of others.
constexpr TiledVariant kVariants[] = {
    {.name = "row_blocks_2", .max_row_blocks = 2},
    {.name = "one_head", .one_head = true},
    {.name = "whole_splits", .shares_splits = false},
};

/// What a plan holds.
struct TiledPlan {
  const TiledVariant& variant;  // a constant
  std::int64_t l1d_bytes, l3_bytes;
};

}  // namespace

/// Rows of a task, of calls that come in blocks.
std::int64_t TiledBackend::task_rows_of(const AttentionParams& params, const Shape& shape,
                                        const BlockLimits& limits) noexcept {
  const TiledKernel& k = *shape.kernel;
  return shape.divides_blocks(limits.workers)
             ? even_block_rows(params, k, limits.row_blocks, shape.splits, limits.workers)
             : choose_block_rows(params, k.width, k.lanes, limits.row_blocks, limits.workers);
}

/// The same in whole row blocks, which is what a plan has room for: with it as the limit a call
/// with the plan's extents has the same task_rows_of.
std::int64_t TiledBackend::block_rows(const AttentionParams& params, const Shape& shape,
                                      const BlockLimits& limits) noexcept {
  const std::int64_t width = shape.kernel->width;
  if (shape.is_decode) return limits.row_blocks * width;
  return ceil_div(task_rows_of(params, shape, limits), width) * width;
}

TiledBackend::TiledBackend(BackendInfo info, const TiledTraits& traits)
    : info_(std::move(info)), traits_(traits) {}

TiledBackend::Shape TiledBackend::shape_of(const AttentionParams& params, Isa isa,
                                           std::int32_t workers,
                                           const TiledVariant& variant) const noexcept {
  Shape shape;
  shape.kernel = &kernel_of(params, isa);
  shape.variant = &variant;
  const std::int64_t width = shape.kernel->width;
  const std::int64_t rows = rows_per_head(params);
  shape.rows = rows;
  shape.is_decode = rows <= kSplitRows;
  shape.is_decode_kernel = rows <= shape.kernel->max_decode_rows;
  shape.few_row_blocks = std::max<std::int64_t>(ceil_div(std::min(rows, kSplitRows), width), 1);
  shape.splits = traits_.shares_splits ? num_splits(rows, params.seqlen_kv) : 1;
  if (!shape.is_decode) {
    shape.splits_blocks = params.seqlen_kv > semantics::kLongKeys;
    shape.tasks = count_tasks(params, width);
    // Of packed sequences only so many have keys enough for splits. Pages may be shared.
    const std::int64_t sequences =
        params.features.has(Feature::kPacked) && !params.features.has(Feature::kPaged)
            ? std::min(params.batch, params.total_kv / semantics::kLongKeys)
            : params.batch;
    const std::int64_t heads = saturating_mul(sequences, params.num_heads_kv);
    // Even blocks have up to twice the row blocks.
    if (traits_.shares_splits) {
      shape.split_row_blocks =
          saturating_mul(heads, 2 * max_split_row_blocks(rows, params.seqlen_kv, width));
    }
    return shape;
  }
  if (shape.is_decode_kernel && !variant.one_head) {
    shape.heads_per_task = choose_heads(params, shape.splits, workers);
  }
  shape.row_blocks = shape.few_row_blocks * shape.heads_per_task;
  const std::int64_t groups = ceil_div(params.num_heads_kv, shape.heads_per_task);
  shape.tasks = rows == 0 ? 0 : saturating_mul(params.batch, groups);
  return shape;
}

std::int64_t TiledBackend::tile_kv(const AttentionParams& params,
                                   const TiledKernel& kernel) const noexcept {
  // Longer rows would take more workspace than EFFICIENT's megabyte a worker.
  constexpr std::int64_t kLongestRow = 256;
  const bool is_short = std::max(params.head_dim_qk, params.head_dim_v) <= kLongestRow;
  return (is_short ? kernel.tile_factor : 1) *
         traits_.tile_kv(params.head_dim_qk, params.head_dim_v);
}

/// As many row blocks as leave an eighth of the L2 when the copies of a tile are in it; changes no
/// bits.
std::int64_t TiledBackend::max_row_blocks(const AttentionParams& params, const Env& env,
                                          const TiledVariant& variant) const noexcept {
  constexpr std::int64_t kUsualL2 = 1 << 20;
  const std::int64_t room = (env.l2_bytes > 0 ? env.l2_bytes : kUsualL2) / 8 * 7;
  const auto row_bytes = [](std::int64_t head_dims) {
    return saturating_mul(head_dims, sizeof(float));
  };
  const std::int64_t both = saturating_add(params.head_dim_qk, params.head_dim_v);
  const std::int64_t copied = params.dtype_k == Dtype::kF32 ? params.head_dim_v : both;
  const TiledKernel& kernel = kernel_of(params, env.isa);
  const std::int64_t row_block = saturating_mul(kernel.width, row_bytes(both));
  std::int64_t row_blocks = traits_.max_row_blocks;
  const bool is_narrow = has_narrow_window(params, kernel);
  const auto bytes = [&] {
    const std::int64_t keys = is_narrow ? window_keys(params, row_blocks * kernel.width, false) : 0;
    const std::int64_t tiles =
        saturating_mul(std::max(keys, tile_kv(params, kernel)), row_bytes(copied));
    return saturating_add(saturating_mul(row_blocks, row_block), tiles);
  };
  while (row_blocks > 1 && bytes() > room) row_blocks /= 2;
  return variant.max_row_blocks > 0 ? std::min(variant.max_row_blocks, row_blocks) : row_blocks;
}

/// One vector of rows, or one split of its keys, is the finest that execute divides a call into.
std::int32_t TiledBackend::workers(const AttentionKey& key, const Env& env) const noexcept {
  const AttentionParams& params = key.params();
  const Shape shape = shape_of(params, env.isa, 1, kDefaultVariant);
  if (!shape.is_decode) {
    const std::int64_t tasks = count_tasks(params, shape.kernel->lanes);
    return plan_workers(env, params, saturating_mul(tasks, shape.splits));
  }
  const std::int64_t heads = saturating_mul(params.batch, params.num_heads_kv);
  return plan_workers(env, params, saturating_mul(heads, shape.splits));
}

/// Rows of the copies of a tile of K and of V, and the bytes of a row.
struct TiledBackend::TileCopies {
  std::int64_t keys = 0, key_bytes = 0;
  std::int64_t values = 0, value_bytes = 0;
};

/// What decode rows copy of tiles, at most: they read all types where they are but what a unit
/// converts, rows of u4 that end within a group, rows of which blocks have scales, and tiles that
/// lie in several pages, of which rows of u4 have their groups behind them.
TiledBackend::TileCopies TiledBackend::decode_copies(const AttentionParams& params,
                                                     const TiledKernel& kernel,
                                                     std::int64_t tile_rows) noexcept {
  const FeatureSet& features = params.features;
  const bool has_blocks = scale_layout_of(features) != ScaleLayout::kRows;
  const bool in_runs =
      params.page_size % kDecodeTileKv == 0 && !features.has(Feature::kCacheLeftpad);
  const bool in_pages = features.has(Feature::kPaged) && !in_runs;
  const auto row_bytes = [&](Dtype dtype, std::int64_t head_dim) -> std::int64_t {
    const bool has_part_groups = dtype == Dtype::kU4 && head_dim % kGroupSize != 0;
    const bool is_converted = has_part_groups || (dtype == Dtype::kU4 && !kernel.reads_u4) ||
                              (has_blocks && is_quantised(dtype)) ||
                              (dtype == Dtype::kF8E5M2 && !kernel.converts_f8);
    const std::int64_t padded = padded_head_dim(head_dim);
    if (is_converted) return saturating_mul(padded, sizeof(float));
    if (is_f8(dtype) && kernel.converts_f8) return saturating_mul(padded, 2);
    const std::int64_t groups = dtype == Dtype::kU4 ? head_dim / kGroupSize : 0;
    return in_pages ? bytes_of(dtype, head_dim) + groups * 2 * std::int64_t{sizeof(float)} : 0;
  };
  const std::int64_t of_keys = row_bytes(params.dtype_k, params.head_dim_qk),
                     of_values = row_bytes(params.dtype_v, params.head_dim_v);
  return {of_keys > 0 ? tile_rows : 0, of_keys, of_values > 0 ? tile_rows : 0, of_values};
}

/// What a call with these extents copies, at most.
TiledBackend::TileCopies TiledBackend::tile_copies(const AttentionParams& params,
                                                   const Shape& shape,
                                                   const TiledArgs& args) const noexcept {
  if (shape.is_decode_kernel) return decode_copies(params, *shape.kernel, args.decode_tile_kv);
  const bool is_paged = params.features.has(Feature::kPaged);
  const bool copies_pairs = is_of_pairs(*shape.kernel);
  const bool converts = is_paged || params.dtype_k != Dtype::kF32 || params.dtype_v != Dtype::kF32;
  bool keys = converts, values = converts;
  if (copies_pairs) {  // load_pairs()
    constexpr std::int32_t kPairLog2 = 2;
    keys = is_paged || params.head_dim_qk % 2 != 0 ||
           (params.layout_k != Layout::kBhsd && params.align_k_log2 < kPairLog2);
  } else if (!values && args.copies_values) {  // FloatTiles::need_values()
    constexpr std::int64_t kProductRows = 8, kSharesSets = 4096;
    const std::int64_t heads = params.layout_v == Layout::kBshd ? params.num_heads_kv : 1;
    const std::int64_t row_bytes =
        saturating_mul(saturating_mul(heads, params.head_dim_v), sizeof(float));
    values = params.head_dim_v % kProductRows != 0 || params.layout_v == Layout::kStrided ||
             row_bytes % kSharesSets == 0 || (args.copies_strided && heads > 1);
  }
  const std::int64_t bytes = copies_pairs ? 2 : sizeof(float);
  // The stride of a single row is not known, which may be copied whatever the layout.
  constexpr std::int64_t kSingle = 1;
  return {keys ? args.max_tile_kv : kSingle,
          saturating_mul(padded_head_dim(params.head_dim_qk), bytes),
          values ? args.max_tile_kv : kSingle,
          saturating_mul(padded_head_dim(params.head_dim_v), bytes)};
}

/// Whether the outs of all row blocks end with their first tile, which writes them (output_rows.h);
/// values in place are read as rows where these follow one another.
bool TiledBackend::ends_at_once(const AttentionParams& params, const Shape& shape,
                                const TiledArgs& args) const noexcept {
  const TiledKernel& k = *shape.kernel;
  // Sequences of fewer rows may have splits.
  const bool is_one_tile =
      params.seqlen_kv <= args.tile_kv || (args.has_narrow_window && !has_shorter_rows(params) &&
                                           num_splits(shape.rows, params.seqlen_kv) == 1);
  const bool is_dense =
      traits_.copies || params.dtype_v != Dtype::kF32 || params.layout_v == Layout::kBhsd;
  return k.adds_rows && !shape.has_outs && !shape.is_decode_kernel && is_dense &&
         params.head_dim_v % k.lanes == 0 && is_one_tile && !params.features.has(Feature::kOutAmax);
}

/// Fills in args what a narrow window makes of their tiles; returns the keys of a tile that a row
/// block sees, at most.
std::int64_t TiledBackend::set_narrow_window(const AttentionParams& params, const Shape& shape,
                                             TiledArgs* args) noexcept {
  const TiledKernel& k = *shape.kernel;
  args->has_narrow_window = has_narrow_window(params, k);
  args->max_tile_kv = args->tile_kv;
  if (!args->has_narrow_window) return args->tile_kv;
  const std::int64_t row_blocks =
      std::max(shape.is_decode ? shape.row_blocks : 0, shape.few_row_blocks);
  const std::int64_t rows = std::max(shape.block_rows, row_blocks * k.width);
  // An even number: keys of bf16 are copied in pairs.
  args->max_tile_kv = std::max(args->tile_kv, round_up(window_keys(params, rows, false), 2));
  return std::max(args->tile_kv, window_keys(params, k.width, true));
}

/// Fills args but for the problem; returns a worker's bytes, saturating.
std::int64_t TiledBackend::lay_out(const AttentionParams& params, const Shape& shape,
                                   TiledArgs* args) const noexcept {
  constexpr std::int64_t kBytes = sizeof(float);
  const TiledKernel& k = *shape.kernel;
  // Bytes of a row block's rows of q or out, in either form; a few rows of a larger call take
  // theirs.
  const auto row_block_rows = [&](std::int64_t head_dim, std::int64_t dot, std::int64_t bytes) {
    const std::int64_t lanes = saturating_mul(k.width * bytes, padded_head_dim(head_dim));
    return shape.is_decode_kernel ? dot * kBytes : std::max(dot * kBytes, lanes);
  };
  const std::int64_t few = shape.few_row_blocks, row_blocks = std::max(shape.row_blocks, few);
  const std::int64_t dot_rows = std::min(shape.rows, max_decode_rows(k.width));
  const bool has_words = params.dtype_q == Dtype::kBf16 &&
                         (params.dtype_k == Dtype::kI8 || params.dtype_k == Dtype::kU4);
  const std::int64_t dot_q = decode_query_size(dot_rows, params.head_dim_qk, has_words);
  const std::int64_t q = row_block_rows(params.head_dim_qk, dot_q, is_of_pairs(k) ? 2 : kBytes),
                     dot_out = dot_rows * dot_row_size(params.head_dim_v),
                     out = row_block_rows(params.head_dim_v, dot_out, kBytes);
  args->grid = make_grid(params, shape.is_decode ? shape.row_blocks * k.width : shape.block_rows);
  args->heads_per_task = shape.heads_per_task;
  args->head_groups = ceil_div(params.num_heads_kv, shape.heads_per_task);
  args->splits_per_task = shape.splits;
  args->tile_kv = tile_kv(params, k);
  args->decode_tile_kv = decode_tile_kv(params, k, args->tile_kv);
  args->copies_values = traits_.copies;
  const std::int64_t seen_keys = set_narrow_window(params, shape, args);
  args->ends_at_once = ends_at_once(params, shape, *args);
  args->copies_strided = traits_.copies && args->ends_at_once;
  // A split of decode rows has no more keys than a block that is summed, up to 65,536 in all.
  constexpr std::int64_t kKeysInSplits = 1 << 16;
  const std::int64_t keys_of_one = shape.is_decode ? kKeysInSplits : kSumBlockKeys;
  const std::int64_t summed = params.seqlen_kv > keys_of_one ? row_blocks : 0;
  ScratchLayout layout;
  args->at_row_blocks = layout.take(row_blocks, k.row_block_bytes);
  args->at_q = layout.take(row_blocks, q);
  // The out of a split beside the total. Sequences of few rows among those of a larger call have it
  // behind theirs, where row blocks of more rows are.
  const bool in_splits = semantics::split_count(params.seqlen_kv) > 1;
  const std::int64_t divided = !in_splits            ? 0
                               : shape.is_decode     ? shape.row_blocks
                               : shape.splits_blocks ? row_blocks
                                                     : few;
  const bool is_apart = shape.is_decode || shape.splits_blocks;
  args->at_out = layout.take(is_apart ? row_blocks : std::max(row_blocks, few + divided),
                             !args->ends_at_once        ? out
                             : has_shorter_rows(params) ? dot_out * kBytes  // the few of those
                                                        : 0);
  args->at_split = is_apart ? layout.take(divided, out) : args->at_out + few * out;
  args->at_states = layout.take(2 * divided, k.state_bytes);
  args->at_block = layout.take(summed, out);
  args->at_totals = layout.take(summed, k.state_bytes);
  args->at_scores =
      layout.take((shape.is_decode_kernel ? args->decode_tile_kv : seen_keys) * k.width, kBytes);
  const TileCopies copies = tile_copies(params, shape, *args);
  // Values that share sets without being expected to, of a stride that is not the layout's usual
  // one, are read where they lie.
  args->copies_values = args->copies_values && copies.values > 1;
  args->copies_strided = args->copies_strided && copies.values > 1;
  args->at_keys = layout.take(copies.keys, copies.key_bytes);
  args->at_values = layout.take(copies.values, copies.value_bytes);
  args->at_row = layout.take(args->tile_kv, kBytes);
  args->at_registers = layout.take(function_bytes(params, k.width, k.lanes, kBytes, false), 1);
  // Of decode rows the row blocks of a task, else one.
  const std::int64_t handed = shape.is_decode ? shape.row_blocks : 1;
  ScratchLayout split;
  split.take(handed, k.state_bytes);
  split.take(handed, out);
  args->split_bytes = split.total();
  return std::max(layout.total(), append_scratch_bytes(params));
}

/// A worker's bytes in calls of so few rows that they have outs where a plan's own have none.
std::int64_t TiledBackend::few_rows_bytes(AttentionParams params, Isa isa) const noexcept {
  const std::int64_t few = kernel_of(params, isa).max_decode_rows, rows = rows_per_head(params);
  if (rows > few) params.seqlen_q = few / (rows / params.seqlen_q);
  constexpr TiledVariant kOneHead{.one_head = true};
  TiledArgs args;
  return lay_out(params, shape_of(params, isa, 1, kOneHead), &args);
}

std::int64_t TiledBackend::workspace_of(const AttentionKey& key, const Env& env,
                                        const TiledVariant& variant) const noexcept {
  const AttentionParams& params = key.params();
  const std::int32_t worker_count = workers(key, env);
  TiledArgs args;
  Shape shape = shape_of(params, env.isa, worker_count, variant);
  if (!shape.is_decode) {
    shape.set_block(
        block_rows(params, shape, {max_row_blocks(params, env, variant), worker_count}));
  }
  std::int64_t worker_bytes = lay_out(params, shape, &args);
  if (args.ends_at_once) worker_bytes = std::max(worker_bytes, few_rows_bytes(params, env.isa));
  if (args.ends_at_once && semantics::split_count(params.seqlen_kv) > 1) {
    shape.has_outs = true;  // as calls of fewer rows have, whose keys are split
    worker_bytes = std::max(worker_bytes, lay_out(params, shape, &args));
  }
  const std::int64_t workers_bytes = saturating_mul(worker_bytes, worker_count);
  const std::int64_t fixed =
      saturating_add(problem::rotated_queries_bytes(params), packed_blocks_bytes(params));
  const std::int64_t bytes = saturating_add(workers_bytes, fixed);
  if (!shape.shares_splits(worker_count)) return bytes;
  return saturating_add(bytes, shape.shared_bytes(args));
}

std::int64_t TiledBackend::workspace_bytes(const AttentionKey& key, const Env& env) const {
  return workspace_of(key, env, kDefaultVariant);
}

KernelPlan TiledBackend::plan_of(const AttentionKey& key, const Env& env,
                                 const TiledVariant& variant) const {
  const AttentionParams& params = key.params();
  const Shape shape = shape_of(params, env.isa, 1, variant);
  KernelPlan plan;
  plan.isa = unit_of(env.isa).isa;
  plan.kernel =
      std::string(traits_.name) + "_" + to_string(plan.isa) + "_" + to_string(params.dtype_q);
  if (shape.is_decode) plan.kernel += shape.is_decode_kernel ? "_decode" : "_short";
  plan.workers = workers(key, env);
  plan.tile_q = block_rows(params, shape, {max_row_blocks(params, env, variant), plan.workers});
  plan.tile_kv = tile_kv(params, *shape.kernel);
  plan.workspace_bytes = workspace_of(key, env, variant);
  plan.state = std::make_shared<const TiledPlan>(TiledPlan{variant, env.l1d_bytes, env.l3_bytes});
  return plan;
}

Expected<KernelPlan> TiledBackend::plan(const AttentionKey& key, const Env& env) const {
  return plan_of(key, env, kDefaultVariant);
}

bool TiledBackend::differs(const TiledVariant& variant, const AttentionKey& key,
                           const Env& env) const noexcept {
  const AttentionParams& params = key.params();
  const std::int32_t worker_count = workers(key, env);
  const Shape usual = shape_of(params, env.isa, worker_count, kDefaultVariant);
  if (usual.is_decode) {
    return (variant.one_head && usual.heads_per_task > 1) ||
           (!variant.shares_splits && usual.shares_splits(worker_count));
  }
  const auto rows_of = [&](const TiledVariant& each) {
    const BlockLimits limits{max_row_blocks(params, env, each), worker_count};
    return std::min(block_rows(params, usual, limits), usual.rows);
  };
  return rows_of(variant) < rows_of(kDefaultVariant);
}

std::vector<std::string> TiledBackend::variants(const AttentionKey& key, const Env& env) const {
  std::vector<std::string> names;
  const std::int64_t bytes = workspace_bytes(key, env);
  for (const TiledVariant& variant : kVariants) {
    if (differs(variant, key, env) && workspace_of(key, env, variant) <= bytes) {
      names.emplace_back(variant.name);
    }
  }
  return names;
}

Expected<KernelPlan> TiledBackend::plan_variant(const AttentionKey& key, const Env& env,
                                                std::string_view name) const {
  for (const TiledVariant& variant : kVariants) {
    if (variant.name == name && differs(variant, key, env)) return plan_of(key, env, variant);
  }
  return Backend::plan_variant(key, env, name);
}

Status TiledBackend::execute(const KernelPlan& plan, const AttentionParams& params,
                             const Buffers& buffers, const Launch& launch) const {
  const auto& [variant, l1d_bytes, l3_bytes] = *static_cast<const TiledPlan*>(plan.state.get());
  Shape shape = shape_of(params, plan.isa, plan.workers, variant);
  const TiledKernel& k = *shape.kernel;
  const bool splits_blocks = shape.divides_blocks(plan.workers);
  if (!shape.is_decode) {
    shape.set_block(task_rows_of(params, shape, {plan.tile_q / k.width, plan.workers}));
  }
  TiledArgs args;
  std::int64_t worker_bytes = lay_out(params, shape, &args);
  const std::int64_t room =
      plan.workspace_bytes - packed_blocks_bytes(params) - problem::rotated_queries_bytes(params);
  const Launch behind_queries = behind_rotated_queries(params, launch);
  const Launch rest = behind_packed_blocks(params, behind_queries);
  if (shape.heads_per_task > 1 && worker_bytes * plan.workers > room) {
    // A plan for many rows has room for the decode rows of one head.
    shape.heads_per_task = 1;
    shape.row_blocks = shape.few_row_blocks;
    shape.tasks = params.batch * params.num_heads_kv;
    worker_bytes = lay_out(params, shape, &args);
  }
  if (args.ends_at_once && worker_bytes * plan.workers > room) {
    // A plan for more keys has room for outs in place of copies of values.
    shape.has_outs = true;
    worker_bytes = lay_out(params, shape, &args);
  }
  const std::int64_t workers_bytes = worker_bytes * plan.workers;
  if (workers_bytes > room) {
    return failure(StatusCode::kInternal, "execute", traits_.name, ": workers need ", workers_bytes,
                   " bytes, the plan has ", room);
  }
  args.streams_out = streams_out(params, l3_bytes);
  args.touches_pages = touches_pages(l1d_bytes);
  Functions functions;
  make_problem(params, buffers, &args.problem, &functions);
  clear_amax(args.problem.out_amax, 1);
  args.functions = &function_kernel(plan.isa, sizeof(float));
  const std::int32_t workers = useful_workers(params, plan.workers);
  append_and_rotate(&args.problem, launch.workspace.data, {workers, worker_bytes, rest});
  if (!shape.is_decode) {
    count_packed_blocks(args.problem, args.problem.q.starts, args.problem.group_size,
                        behind_queries, &args.grid);
    const std::int64_t blocks = params.num_heads_kv * args.grid.all_blocks;
    args.split_bytes *= shape.row_blocks;
    if (splits_blocks && workers_bytes + blocks * shape.splits * args.split_bytes <= room) {
      args.splits = static_cast<char*>(rest.workspace.data) + workers_bytes;
      args.grid.whole = blocks;
      run_tasks({k.forward_split, &args, blocks * shape.splits, worker_bytes}, workers, rest);
    } else {
      args.grid = with_sub_blocks(params, args.grid, k.width, workers);
    }
    const std::int64_t tasks = count_tasks(params, args.grid);
    run_tasks({k.forward, &args, tasks, worker_bytes}, workers, rest);
  } else if (shape.shares_splits(workers) && workers_bytes + shape.shared_bytes(args) <= room) {
    args.splits = static_cast<char*>(rest.workspace.data) + workers_bytes;
    args.split_runs = workers / std::gcd(shape.tasks, std::int64_t{workers});
    const std::int64_t steps = split_steps(shape.splits, args.split_runs);
    run_tasks({k.decode_split, &args, shape.tasks * steps, worker_bytes}, workers, rest);
    run_tasks({k.decode_merge, &args, shape.tasks, worker_bytes}, workers, rest);
  } else {
    run_tasks({k.decode, &args, shape.tasks, worker_bytes}, workers, rest);
  }
  clear_outputs_past_end(args.problem);
  return Status();
}

const BackwardKernel& TiledBackend::backward_kernel(const AttentionParams& params,
                                                    Isa isa) const noexcept {
  return traits_.one_pass ? one_pass_kernel(params, isa) : backward_kernels(isa).f32;
}

std::int64_t TiledBackend::backward_workspace_bytes(const AttentionKey& key, const Env& env) const {
  return backward_workspace_within(key, env, kInt64Max);
}

std::int64_t TiledBackend::backward_workspace_within(const AttentionKey& key, const Env& env,
                                                     std::int64_t max_bytes) const {
  return cpu::backward_workspace_bytes(key, env, backward_kernel(key.params(), env.isa), max_bytes);
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

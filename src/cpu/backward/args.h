#pragma once

#include <cstdint>

#include "cpu/functions/function_kernel.h"
#include "cpu/problem.h"
#include "cpu/threads/progress.h"
#include "problem/grad_problem.h"

// Two ways to the gradients, both over tiles whose scores are computed again.
//
// Two passes: one over blocks of rows gives d_q, one over tiles of keys gives d_k and d_v. Seven
// products where one pass needs five, but every sum has one owner and memory is that of a tile.
//
// One pass: five products; the packed rows, keys and sums of a whole (b, kv head) are in memory.
// Its rows and keys are cut into blocks, and these divided into ranges: each pair of a row range
// and a key range is a grid with sums of its own, so that grids are computed side by side. Within
// a grid of n blocks a side, row block r takes key block c in phase (r - c) mod n: after the pairs
// (r - 1, c) and (r, c + 1). So every sum has one order, however many workers take part. Blocks and
// ranges are functions of the sequence's own rows and keys (HeadGrid). At the end the partial sums
// of d_q over key ranges, and of d_k and d_v over row ranges, are added in the ranges' order.
//
// tile.inl, keys.inl, two_pass.inl, one_pass.inl and bias.inl are the algorithms, over the products
// of float_products.inl, pair_products.inl or amx_products.inl.

namespace regard::cpu {

struct BackwardArgs {
  GradProblem grad{};
  TaskGrid grid{};                    // row blocks, for d_q in a pass of its own
  TaskGrid key_grid{};                // tiles of keys, for d_k and d_v in one
  std::int64_t tile_kv = 64;          // a multiple of 8: dropout draws by 8 keys
  std::int64_t queries_per_task = 1;  // for d_bias: whole queries, with all heads of a group
  bool copies_tiles = false;          // of K and V, whatever serves in place

  // W is the kernel's width, columns are head_dim padded to whole vectors. What is multiplied lies
  // in operands of `pack` elements, whole steps of them: n / pack below, rounded up.
  std::int64_t row_blocks = 1;  // of a group
  // What is known of a row block, packed for every product. In one pass the whole head's row blocks
  // lie in its memory, packed once; else one in the scratch.
  std::int64_t row_block_bytes = 0;
  std::int64_t at_row_block = 0;   // within a row block's:
  std::int64_t at_q = 0;           // q^T [head_dim_qk / pack][W]
  std::int64_t at_d_out = 0;       // d_out^T [head_dim_v / pack][W]
  std::int64_t at_q_rows = 0;      // [W / pack][columns], in chunks
  std::int64_t at_d_out_rows = 0;  // [W / pack][columns], in chunks
  // What is copied of a tile of K and V. In one pass the whole head's lie in its memory.
  std::int64_t tile_bytes = 0;
  std::int64_t at_tile_state = 0;  // within a tile's: what is known of it, one pass
  std::int64_t at_keys = 0;        // [tile_kv][padded head_dim_qk / pack]
  std::int64_t at_values = 0;      // [tile_kv][padded head_dim_v / pack]
  std::int64_t at_keys_t = 0;      // pairs: [tile_kv / pack][padded head_dim_qk], or transposed
  // What a row block makes of a tile, for each of a group in the scratch.
  std::int64_t score_bytes = 0;
  std::int64_t at_probs = 0;        // within those: scores^T, then probs^T [tile_kv][W]
  std::int64_t at_d_scores = 0;     // d_probs^T, then d_scores^T [tile_kv][W]
  std::int64_t at_capped = 0;       // scores^T after softcap, before functions [tile_kv][W]
  std::int64_t at_before_host = 0;  // scores^T before the host language's edit [tile_kv][W]
  std::int64_t at_seen = 0;         // SeenKeys
  // The rest of a worker's scratch.
  std::int64_t at_rows = 0;       // of one row block, two passes
  std::int64_t at_tile = 0;       // of one tile
  std::int64_t at_weights = 0;    // pairs: d_scores^T [tile_kv / pack][W] of one row block
  std::int64_t at_row = 0;        // [tile_kv]; two of them where the host language edits
  std::int64_t at_registers = 0;  // of functions
  std::int64_t at_out = 0;        // out^T [head_dim_v / pack][W]
  std::int64_t at_d_q = 0;        // d_q^T [padded head_dim_qk][W]
  std::int64_t at_d_k = 0;        // [tile_kv][columns], in chunks
  std::int64_t at_d_v = 0;        // [tile_kv][columns], in chunks
  std::int64_t at_d_bias = 0;     // f64 [queries_per_task][group_size][tile_kv]

  const FunctionKernel* functions = nullptr;  // set where the problem has any
  // d_captured: the elements of the tensors wanted stand one tensor behind the other, and are
  // summed a range after the other: f64 [slices][elements of a range], a slice of the work each.
  double* captured_sums = nullptr;
  std::int64_t captured_slices = 0;
  std::int64_t captured_elements = 0;                // of all
  std::int64_t captured_at[kMaxCapturedViews] = {};  // where a tensor's begin
  std::int64_t captured_begin = 0;                   // of the range at hand
  std::int64_t captured_size = 0;                    //

  // One pass: the memory of those heads that are under way, head_bytes apart.
  char* heads = nullptr;
  std::int64_t head_bytes = 0;
  std::int64_t at_row_blocks = 0;  // [row blocks of the head] row_block_bytes
  std::int64_t at_tiles = 0;       // [tiles of the head] tile_bytes
  // Of each key range d_q^T [row blocks][row blocks of a block][padded head_dim_qk][W]; of each row
  // range, in chunks, d_k and d_v [key blocks * tile_kv][columns].
  std::int64_t at_sum_q = 0;
  std::int64_t at_sum_k = 0;
  std::int64_t at_sum_v = 0;
  std::int64_t at_progress = 0;        // HeadProgress
  std::int64_t at_flags = 0;           // [2][blocks]: of row blocks and key blocks, if packed
  std::int64_t at_done = 0;            // [row ranges][key blocks]: phases that are done
  std::int64_t blocks = 0;             // of rows or keys of the tensors, whichever are more
  std::int64_t blocks_per_item = 1;    // key blocks that a worker takes together; changes no bits
  std::int64_t all_heads = 0;          // of the call
  std::int64_t head_workspaces = 0;    // of heads
  std::int64_t workers = 0;            // of the call
  std::int64_t* heads_left = nullptr;  // of which a work item is left to take
  Interrupt* interrupt = nullptr;      // blocks that it ends are counted, not computed
  const char* scratch = nullptr;       // of worker 0, to find whose a task's is
  std::int64_t scratch_bytes = 0;
};

/// Rows of a block in one pass, at most, and its keys: a group of row blocks (group_rows) and a
/// tile. The pair, 16 Mflop at head_dim 64, is the finest that workers share.
inline constexpr std::int64_t kBlockQueries = 192;
inline constexpr std::int64_t kBlockKeys = 128;

/// Row blocks of `width` rows in a block of rows.
REGARD_KERNEL_FN constexpr std::int64_t task_row_blocks(std::int64_t width) {
  return kBlockQueries / width;
}

/// How the pairs of a head's blocks are divided: a function of its own rows and keys.
struct HeadGrid {
  std::int64_t block_rows;
  std::int64_t row_blocks;
  std::int64_t key_blocks;
  std::int64_t row_ranges;
  std::int64_t key_ranges;
};

/// Pairs of a row range and a key range.
REGARD_KERNEL_FN constexpr std::int64_t count_grids(const HeadGrid& grid) {
  return grid.row_ranges * grid.key_ranges;
}

/// Ranges of the blocks across from `blocks`, which has a sum for each: as many as let 64 workers
/// work at different blocks, but no more than one for six pairs, some 0.1 ms each: to clear and to
/// add sums costs a percent of the time for each range or so.
REGARD_KERNEL_FN constexpr std::int64_t count_ranges(std::int64_t blocks, std::int64_t across) {
  constexpr std::int64_t kWorkers = 64, kPairs = 6;
  const bool is_long = blocks >= kWorkers * kPairs || across >= kWorkers * kPairs;
  const std::int64_t workers =
      is_long ? kWorkers : semantics::clamp(blocks * across / kPairs, 1, kWorkers);
  return semantics::clamp((workers + blocks - 1) / blocks, 1, across);
}

/// Blocks of rows are as even as whole vectors allow: of 208 rows in blocks of 192 and 16 nearly
/// all was one worker's. `rows` or `keys` of 0: no blocks, for nothing is seen.
REGARD_KERNEL_FN constexpr HeadGrid head_grid(std::int64_t rows, std::int64_t keys,
                                              std::int64_t width) {
  const auto divided = [](std::int64_t n, std::int64_t by) {  // upwards; n may be saturated
    return n / by + (n % by > 0 ? 1 : 0);
  };
  const std::int64_t most = task_row_blocks(width) * width;
  if (rows == 0 || keys == 0) return {most, 0, 0, 1, 1};
  const std::int64_t row_blocks = divided(rows, most), key_blocks = divided(keys, kBlockKeys);
  const std::int64_t block_rows = divided(divided(rows, row_blocks), width) * width;
  return {block_rows, row_blocks, key_blocks, count_ranges(key_blocks, row_blocks),
          count_ranges(row_blocks, key_blocks)};
}

/// Blocks that all ranges' sums over up to `across` blocks take together, where a head has `blocks`
/// or fewer.
REGARD_KERNEL_FN constexpr std::int64_t max_summed_blocks(std::int64_t blocks,
                                                          std::int64_t across) {
  std::int64_t max = blocks;
  for (std::int64_t n = 1; n <= blocks && n <= 64; ++n) {
    const std::int64_t summed = n * count_ranges(n, across);
    if (summed > max) max = summed;
  }
  return max;
}

/// The work items in which workers take a head, in their order: the pairs' phases, then sums to add
/// and write. A work item waits for earlier ones alone.
struct HeadItems {
  std::int64_t pairs;  // runs of key blocks, each in two halves
  std::int64_t end;    // a row block and a key block each
};

REGARD_KERNEL_FN constexpr std::int64_t count_items(const HeadItems& items) {
  return items.pairs + items.end;
}

/// Runs of `per_item` neighbouring key blocks in the longest key range.
REGARD_KERNEL_FN constexpr std::int64_t count_runs(const HeadGrid& grid, std::int64_t per_item) {
  const std::int64_t longest = (grid.key_blocks + grid.key_ranges - 1) / grid.key_ranges;
  return (longest + per_item - 1) / per_item;
}

REGARD_KERNEL_FN constexpr HeadItems head_items(const HeadGrid& grid, std::int64_t blocks,
                                                std::int64_t per_item) {
  return {2 * count_runs(grid, per_item) * count_grids(grid), blocks};
}

/// How far the head is that has a head workspace.
struct HeadProgress {
  std::int64_t head;
  std::int64_t left;     // work items to take; none: 0 or less
  std::int64_t ended;    // work items
  std::int64_t workers;  // that are at it, its owner included
};

REGARD_KERNEL_FN HeadProgress& progress_of(const BackwardArgs& a, char* head_workspace) {
  return *reinterpret_cast<HeadProgress*>(head_workspace + a.at_progress);
}

/// Tiles of keys in a tensor of `seqlen_kv` rows.
REGARD_KERNEL_FN std::int64_t tiles_in(std::int64_t seqlen_kv, std::int64_t tile_kv) {
  return (seqlen_kv + tile_kv - 1) / tile_kv;
}

/// How the elements of d_bias are divided among tasks: over the dimensions that are not broadcast,
/// each in blocks. A task sums over all of the others.
struct BiasGrid {
  std::int64_t batches, heads_kv, query_blocks, key_tiles;
};

REGARD_KERNEL_FN BiasGrid bias_grid(const BackwardArgs& a) {
  const Problem& p = a.grad.problem;
  const bool* full = a.grad.bias_is_full;
  const std::int64_t blocks = (p.seqlen_q + a.queries_per_task - 1) / a.queries_per_task;
  return {full[0] ? p.batch : 1, full[1] ? p.num_heads_kv : 1, full[2] ? blocks : 1,
          full[3] ? tiles_in(p.seqlen_kv, a.tile_kv) : 1};
}

/// d_captured is summed over blocks of queries of every (b, kv head); each slice takes every
/// captured_slices-th of them.
REGARD_KERNEL_FN std::int64_t captured_blocks(const BackwardArgs& a) {
  const Problem& p = a.grad.problem;
  const std::int64_t blocks = (p.seqlen_q + a.queries_per_task - 1) / a.queries_per_task;
  return p.batch * p.num_heads_kv * blocks;
}

/// A kernel's entry: computes one task in `scratch`.
using BackwardFn = void (*)(const void* args, std::int64_t task, char* scratch);

/// One instruction set's kernels for one arithmetic, in two passes or in one.
struct BackwardKernel {
  // Two passes:
  BackwardFn d_queries = nullptr;  // tasks of the grid
  BackwardFn d_keys = nullptr;     // d_k and d_v: (b, kv head, tile of keys)
  // One pass:
  BackwardFn head = nullptr;  // a (b, kv head); past the last, work items of those under way
  // Either:
  BackwardFn d_bias = nullptr;       // tasks of the bias grid
  BackwardFn d_sinks = nullptr;      // a query head
  BackwardFn d_captured = nullptr;   // a slice
  std::int64_t width = 0;            // rows of a row block
  std::int64_t lanes = 0;            // of a vector
  std::int64_t row_block_bytes = 0;  // of a row block's state
  std::int64_t packed_bytes = 0;     // of a tile's, one pass
  std::int64_t scalar_bytes = 0;     // of the arithmetic, and of an operand of its products
  std::int64_t pack = 1;             // elements of an operand: 2 of bf16
  std::int64_t step = 1;             // elements that a product contracts together

  bool is_one_pass() const { return head != nullptr; }
};

}  // namespace regard::cpu

#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "cpu/threads/progress.h"
#include "problem/grad_problem.h"

// Two ways to the gradients, both over tiles whose scores are computed again.
//
// Two passes: one over blocks of rows gives d_q, one over tiles of keys gives d_k and d_v. Seven
// products where one pass needs five, but every sum has one owner and memory is that of a tile.
//
// One pass: five products; the packed rows, keys and sums of a whole (b, kv head) are in memory.
// Its rows and its keys are cut into n blocks, and block r of rows meets block c of keys in phase
// (r - c) mod n: after block c met r - 1 and after block c + 1 met r. So every sum has one order,
// however many workers take part in a head, and these need wait for nothing else.
//
// tile.inl, keys.inl, two_pass.inl, one_pass.inl and bias.inl are the algorithms, over the products
// of float_products.inl or pair_products.inl.

namespace regard::cpu {

struct BackwardArgs {
  GradProblem grad{};
  TaskGrid grid{};                    // row blocks, for d_q in a pass of its own
  std::int64_t tile_kv = 64;          // a multiple of 8: dropout draws by 8 keys
  std::int64_t queries_per_task = 1;  // for d_bias: whole queries, with all heads of a group
  bool copies_tiles = false;          // of K and V, whatever serves in place

  // W is the kernel's width, columns are head_dim padded to whole vectors. What is multiplied lies
  // in operands of `pack` elements: n / pack below, rounded up.
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
  std::int64_t at_packed = 0;  // within a tile's: what is known of it, one pass
  std::int64_t at_keys = 0;    // [tile_kv][padded head_dim_qk / pack]
  std::int64_t at_values = 0;  // [tile_kv][padded head_dim_v / pack]
  std::int64_t at_keys_t = 0;  // pairs: [tile_kv / pack][padded head_dim_qk]
  // What a row block makes of a tile, for each of a group in the scratch.
  std::int64_t score_bytes = 0;
  std::int64_t at_probs = 0;     // within those: scores^T, then probs^T [tile_kv][W]
  std::int64_t at_d_scores = 0;  // d_probs^T, then d_scores^T [tile_kv][W]
  std::int64_t at_capped = 0;    // scores^T after softcap [tile_kv][W]
  // The rest of a worker's scratch.
  std::int64_t at_rows = 0;     // of one row block, two passes
  std::int64_t at_tile = 0;     // of one tile
  std::int64_t at_weights = 0;  // pairs: d_scores^T [tile_kv / pack][W] of one row block
  std::int64_t at_row = 0;      // [tile_kv]
  std::int64_t at_out = 0;      // out^T [head_dim_v / pack][W]
  std::int64_t at_d_q = 0;      // d_q^T [padded head_dim_qk][W]
  std::int64_t at_d_k = 0;      // [tile_kv][columns], in chunks
  std::int64_t at_d_v = 0;      // [tile_kv][columns], in chunks
  std::int64_t at_d_bias = 0;   // f64 [queries_per_task][group_size][tile_kv]

  // One pass: the memory of those heads that are under way, head_bytes apart.
  char* heads = nullptr;
  std::int64_t head_bytes = 0;
  std::int64_t at_row_blocks = 0;      // [row blocks of the head] row_block_bytes
  std::int64_t at_tiles = 0;           // [tiles of the head] tile_bytes
  std::int64_t at_sum_q = 0;           // d_q^T [row blocks of the head][padded head_dim_qk][W]
  std::int64_t at_sum_k = 0;           // [tiles * tile_kv][columns], in chunks
  std::int64_t at_sum_v = 0;           // [tiles * tile_kv][columns], in chunks
  std::int64_t at_progress = 0;        // HeadProgress
  std::int64_t at_met = 0;             // [blocks]: the blocks of rows that each of keys has met
  std::int64_t blocks = 0;             // of rows or keys of a head, whichever are more
  std::int64_t all_heads = 0;          // of the call
  std::int64_t head_workspaces = 0;    // of heads
  std::int64_t* heads_left = nullptr;  // of which a work item is left to take
  Interrupt* interrupt = nullptr;      // blocks that it ends are counted, not computed
  const char* scratch = nullptr;       // of worker 0, to tell whose a task's is
  std::int64_t scratch_bytes = 0;
};

/// Rows and keys of a block in one pass: large enough that passing over rows and sums costs little,
/// small enough that one head of 2048 rows serves several workers.
inline constexpr std::int64_t kBlockQueries = 384;
inline constexpr std::int64_t kBlockKeys = 384;

/// Row blocks of `width` rows in a block of rows.
REGARD_KERNEL_FN constexpr std::int64_t task_row_blocks(std::int64_t width) {
  return kBlockQueries / width;
}

/// Blocks of a head with so many rows and keys, whichever are more.
REGARD_KERNEL_FN std::int64_t count_blocks(std::int64_t rows, std::int64_t keys,
                                           std::int64_t width) {
  const std::int64_t block = task_row_blocks(width) * width;
  const std::int64_t of_rows = rows / block + (rows % block > 0 ? 1 : 0);  // rows may be saturated
  const std::int64_t of_keys = keys / kBlockKeys + (keys % kBlockKeys > 0 ? 1 : 0);
  return of_rows > of_keys ? of_rows : of_keys;
}

/// Work items in which workers take a head: from the last block of keys to the first, each meets
/// the blocks of rows from its own on; then, from the last to the second, those before. In that
/// order K, V, d_k and d_v of a block stay in the cache, and no work item waits for a later one.
REGARD_KERNEL_FN constexpr std::int64_t head_items(std::int64_t blocks) { return 2 * blocks - 1; }

/// How far the head is that has a head workspace.
struct HeadProgress {
  std::int64_t head;
  std::int64_t taken;  // work items; more than there are is all
  std::int64_t ended;  // work items
};

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
  std::int64_t width = 0;            // rows of a row block
  std::int64_t lanes = 0;            // of a vector
  std::int64_t row_block_bytes = 0;  // of a row block's state
  std::int64_t packed_bytes = 0;     // of a tile's, one pass
  std::int64_t scalar_bytes = 0;     // of the arithmetic, and of an operand of its products
  std::int64_t pack = 1;             // elements of an operand: 2 of bf16

  bool is_one_pass() const { return head != nullptr; }
};

}  // namespace regard::cpu

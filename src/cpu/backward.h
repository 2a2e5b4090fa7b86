#pragma once

#include <cstdint>

#include "cpu/grad_problem.h"

// Backward in two passes over recomputed tiles: one over blocks of rows gives d_q, one over tiles
// of keys gives d_k and d_v. Seven products where one pass needs five, but every sum has one owner
// and one order, and memory is that of a tile. backward.inl is the algorithm.

namespace regard::cpu {

struct BackwardArgs {
  GradProblem grad{};
  TaskGrid grid{};                    // strips of rows, for d_q
  std::int64_t tile_kv = 64;          // a multiple of 8: dropout draws by 8 keys
  std::int64_t queries_per_task = 1;  // for d_bias: whole queries, with all heads of a group
  // Offsets into a slot's scratch. W is the kernel's width, chunks are of W elements of head_dim.
  std::int64_t at_strip = 0;
  std::int64_t at_q = 0;           // q^T [head_dim_qk][W]
  std::int64_t at_d_out = 0;       // d_out^T [head_dim_v][W]
  std::int64_t at_out = 0;         // out^T [head_dim_v][W]
  std::int64_t at_probs = 0;       // scores^T, then probs^T [tile_kv][W]
  std::int64_t at_d_scores = 0;    // d_probs^T, then d_scores^T [tile_kv][W]
  std::int64_t at_capped = 0;      // scores^T after softcap [tile_kv][W]
  std::int64_t at_keys = 0;        // [tile_kv][head_dim_qk], 16-bit inputs
  std::int64_t at_values = 0;      // [tile_kv][head_dim_v], 16-bit inputs
  std::int64_t at_row = 0;         // [tile_kv]
  std::int64_t at_d_q = 0;         // d_q^T [head_dim_qk][W]
  std::int64_t at_q_rows = 0;      // [chunks][W][W]
  std::int64_t at_d_out_rows = 0;  // [chunks][W][W]
  std::int64_t at_d_k = 0;         // [chunks][tile_kv][W]
  std::int64_t at_d_v = 0;         // [chunks][tile_kv][W]
  std::int64_t at_d_bias = 0;      // f64 [queries_per_task][group_size][tile_kv]
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

/// One instruction set's kernels for one arithmetic.
struct BackwardKernel {
  BackwardFn d_queries;       // tasks of the grid
  BackwardFn d_keys;          // d_k and d_v: (b, kv head, tile of keys)
  BackwardFn d_bias;          // tasks of the bias grid
  BackwardFn d_sinks;         // a query head
  std::int64_t width;         // rows of a strip
  std::int64_t strip_bytes;   // of a strip's state
  std::int64_t scalar_bytes;  // of the arithmetic
};

}  // namespace regard::cpu

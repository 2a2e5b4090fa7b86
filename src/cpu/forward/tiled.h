#pragma once

#include <cstdint>

#include "cpu/functions/function_kernel.h"
#include "cpu/problem.h"

// Tiled forward with online softmax, shared by EFFICIENT and FLASH: what a task needs, and where in
// a worker's scratch. tiled_forward.inl and decode_rows.inl are the algorithm.

namespace regard::cpu {

struct TiledArgs {
  Problem problem{};
  TaskGrid grid{};                  // of rows in lanes
  std::int64_t heads_per_task = 1;  // of K and V, that decode rows take together
  std::int64_t head_groups = 1;     // that those are
  std::int64_t tile_kv = 0;         // a multiple of decode_tile_kv
  std::int64_t max_tile_kv = 0;     // tiles off the grid may have more, see is_one_tile
  std::int64_t decode_tile_kv = 0;  // of decode rows
  bool has_narrow_window = false;   // see is_one_tile
  bool copies_values = false;       // of f32 too, where FloatTiles gains by it
  bool copies_strided = false;      // where their rows do not follow one another, too
  bool ends_at_once = false;        // in one tile all rows end, whose outs need no room
  bool streams_out = false;         // rows of out go past the caches
  bool touches_pages = false;       // of memory, see touches_pages()
  // Offsets into the scratch; nothing in it grows with a length. W is the kernel's width.
  std::int64_t at_row_blocks = 0;
  std::int64_t at_q = 0;          // [row blocks][padded head_dim_qk][W]
  std::int64_t at_out = 0;        // [row blocks][padded head_dim_v][W]
  std::int64_t at_block = 0;      // the same again, of a block of keys,
  std::int64_t at_totals = 0;     // and the row blocks' states but for that block
  std::int64_t at_split = 0;      // outs again, where rows take the splits of their keys
  std::int64_t at_states = 0;     // two of the row blocks' states, there too
  std::int64_t at_scores = 0;     // [keys of a tile that a row block sees][W]
  std::int64_t at_keys = 0;       // [max_tile_kv][padded head_dim_qk], where keys are converted
  std::int64_t at_values = 0;     // [max_tile_kv][padded head_dim_v], where values are copied
  std::int64_t at_row = 0;        // [tile_kv]
  std::int64_t at_registers = 0;  // of functions
  const FunctionKernel* functions = nullptr;  // set where the problem has any
  // Where workers share the splits: what they hand over, [B][groups of heads][splits] of few rows,
  // of others [tasks of the grid][splits].
  char* splits = nullptr;
  std::int64_t split_bytes = 0;
  std::int64_t splits_per_task = 0;
  std::int64_t split_runs = 1;  // see split_of_step
};

/// Where lanes lie along head_dim, rows of q and out are this long.
REGARD_KERNEL_FN constexpr std::int64_t dot_row_size(std::int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// Of so many rows, where the factors of words begin (word_products.h): behind q's floats and as
/// many words, in whole lines.
REGARD_KERNEL_FN constexpr std::int64_t decode_factors_at(std::int64_t rows,
                                                          std::int64_t head_dim) {
  return (rows * dot_row_size(head_dim) * 3 / 2 + 15) / 16 * 16;
}

/// Floats of a row block's decode rows of q. Factors come 16 at a time.
REGARD_KERNEL_FN constexpr std::int64_t decode_query_size(std::int64_t rows, std::int64_t head_dim,
                                                          bool has_words) {
  return has_words ? decode_factors_at(rows, head_dim) + (rows + 15) / 16 * 16
                   : rows * dot_row_size(head_dim);
}

/// A kernel's entry: computes one task in `scratch`.
using TiledFn = void (*)(const void* args, std::int64_t task, char* scratch);

/// One instruction set's kernels for f32 arithmetic (f32, bf16, f16 inputs).
struct TiledKernel {
  TiledFn forward;        // tasks of the grid; sequences of decode rows go whole with their first
  TiledFn forward_split;  // before: one task for each (split, task of the grid)
  TiledFn decode;         // decode rows: one task for each (b, group of heads)
  TiledFn decode_split;   // decode rows: one task for each (split, b, group of heads),
  TiledFn decode_merge;   // then one for each (b, group of heads)
  std::int64_t width;     // rows of a row block
  std::int64_t lanes;     // of a vector, in whole ones of which blocks of rows come
  std::int64_t tile_factor;      // its tiles have so many times a backend's keys
  std::int64_t max_decode_rows;  // up to so many, lanes lie along head_dim
  bool adds_rows;                // see output_rows.h
  std::int64_t row_block_bytes;  // of a row block's state
  std::int64_t state_bytes;      // of its rows' online softmax
  // Of decode rows: whether tiles of u4 are read where they lie, and 8-bit floats become 16 bits.
  bool reads_u4;
  bool converts_f8;
  bool has_f16_of_f8;  // to f16: AVX-512 without pairs of bf16
};

}  // namespace regard::cpu

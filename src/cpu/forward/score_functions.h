#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/functions/function_kernel.h"

// Functions of scores and places within a row block's tile: those of the program, which
// cpu/functions evaluates, and the host language's, a row at a time. All are calls out of line.

namespace regard::cpu {

/// Memory that edits of a tile take, and the functions' kernel.
template <class T>
struct EditScratch {
  T* row;           // [tile_kv]
  char* registers;  // of functions
  const FunctionKernel* functions;
};

template <class V>
static FunctionTile function_tile(const RowBlock<V>& row_block, Tile tile) {
  FunctionTile at;
  at.query = row_block.query;
  at.head = row_block.head;
  at.b = static_cast<std::int32_t>(row_block.b);
  at.shift = static_cast<std::int32_t>(row_block.shift);
  at.len_q = static_cast<std::int32_t>(row_block.len_q);
  at.len_kv = static_cast<std::int32_t>(row_block.len_kv);
  at.rows = row_block.rows;
  at.vectors = row_block.vectors;
  at.key = tile.begin;
  at.size = tile.size;
  return at;
}

/// to[x * to_stride] = from[x * from_stride].
template <class T>
REGARD_KERNEL_FN void copy_strided(const T* from, std::int64_t from_stride, std::int64_t size,
                                   T* to, std::int64_t to_stride) {
  for (std::int64_t x = 0; x < size; ++x) to[x * to_stride] = from[x * from_stride];
}

/// Keys of the tile that row w sees by arithmetic, counted from the tile's first.
template <class V>
REGARD_KERNEL_FN semantics::KeyRange keys_in_tile(const RowBlock<V>& row_block, int w, Tile tile) {
  const semantics::KeyRange keys = row_block.keys[w];
  return {semantics::clamp(keys.lo - tile.begin, 0, tile.size),
          semantics::clamp(keys.hi - tile.begin, 0, tile.size)};
}

/// Edits by the host language's function, of the keys that each row sees by arithmetic.
template <class V>
__attribute__((noinline)) static void edit_by_host(const Problem& p, const RowBlock<V>& row_block,
                                                   Tile tile, typename V::Scalar* scores,
                                                   typename V::Scalar* row) {
  if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
    for (int w = 0; w < row_block.rows; ++w) {
      const semantics::KeyRange keys = keys_in_tile(row_block, w, tile);
      const std::int64_t count = keys.hi - keys.lo;
      if (count <= 0) continue;
      float* const first = scores + keys.lo * V::kWidth + w;
      copy_strided(first, V::kWidth, count, row, 1);
      p.functions->edit(p.functions->user_data, row, count, row_block.b, row_block.head[w],
                        row_block.query[w], tile.begin + keys.lo);
      copy_strided(row, 1, count, first, V::kWidth);
    }
  }
}

/// Scores after softcap become score_function's.
template <class V>
__attribute__((noinline)) static void edit_by_score_function(
    const Problem& p, const RowBlock<V>& row_block, Tile tile, typename V::Scalar* scores,
    const EditScratch<typename V::Scalar>& scratch) {
  scratch.functions->edit(*p.functions, function_tile(row_block, tile), scores, scratch.registers);
}

/// The same, then the host language's edit.
template <class V>
REGARD_KERNEL_FN void edit_by_functions(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                                        typename V::Scalar* scores,
                                        const EditScratch<typename V::Scalar>& scratch) {
  if (p.functions->score.steps != nullptr) {
    edit_by_score_function<V>(p, row_block, tile, scores, scratch);
  }
  if (p.functions->edit != nullptr) edit_by_host<V>(p, row_block, tile, scores, scratch.row);
}

/// Masks by mask_function.
template <class V>
__attribute__((noinline)) static void mask_by_function(
    const Problem& p, const RowBlock<V>& row_block, Tile tile, typename V::Scalar* scores,
    const EditScratch<typename V::Scalar>& scratch) {
  scratch.functions->mask(*p.functions, function_tile(row_block, tile), scores, scratch.registers);
}

}  // namespace regard::cpu

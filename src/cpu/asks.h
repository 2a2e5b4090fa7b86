#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "cpu/simd/simd_vector.h"
#include "cpu/threads/cache_lines.h"
#include "semantics/tiles.h"

// What memory is asked for while products run. Requests are spread finely: a core keeps few open
// and stops at the next one until memory has answered (docs/dev/decisions.md has the figures).

namespace regard::cpu {

/// Rows `stride` bytes apart, asked for by blocks: a line of each row of a block, then the next
/// line of each.
struct AskedRows {
  const char* at;  // in the block's first row
  std::int64_t stride;
  std::int64_t row_lines;
  std::int64_t lines;  // left of the block
  std::int64_t rows;   // left, the block's included
};

REGARD_KERNEL_FN bool is_left(const AskedRows& asked) { return asked.rows > 0; }

/// Asks for the next line of each of kRows rows, into the L2.
template <int kRows>
REGARD_KERNEL_FN void ask_rows(AskedRows* from) {
  if (!is_left(*from)) return;
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(from->at + i * from->stride, 0, 2);
  }
  from->at += kLineBytes;
  if (--from->lines > 0) return;
  from->at += kRows * from->stride - from->row_lines * kLineBytes;
  from->lines = from->row_lines;
  from->rows -= kRows;
}

/// Some keys of a head of k or v, whose rows have `dim` elements.
REGARD_KERNEL_FN AskedRows asked_rows(const View& view, std::int64_t b, std::int64_t head,
                                      semantics::KeyRange keys, std::int64_t dim) {
  if (keys.lo >= keys.hi) return {};
  const std::int64_t element = element_bytes(view.type);
  const std::int64_t lines = lines_of(dim * element);
  return {row_address(view, b, head, keys.lo), view.stride[2] * element, lines, lines,
          keys.hi - keys.lo};
}

/// What a head's row blocks ask for at a tile of K and V: its values, and the next tile's keys.
struct TileAsks {
  AskedRows values;          // in products with keys
  AskedRows keys;            // in those after them,
  AskedRows few_row_blocks;  // or, where memory bounds them, in products with values

  REGARD_KERNEL_FN TileAsks at_tile(const Problem& p, std::int64_t b, TaskHead task_head,
                                    semantics::Tile tile) {
    constexpr std::int64_t kFew = 2;
    const std::int64_t end = tile.begin + tile.size;
    const semantics::KeyRange next{end, semantics::clamp(end + tile.size, 0, p.seqlen_kv)};
    const AskedRows values = asked_rows(p.v, b, task_head.head_kv, {tile.begin, end}, p.head_dim_v);
    const AskedRows keys = asked_rows(p.k, b, task_head.head_kv, next, p.head_dim_qk);
    if (task_head.row_blocks <= kFew) return {values, {}, keys};
    return {values, keys, {}};
  }

  /// For the next product with keys.
  REGARD_KERNEL_FN AskedRows* with_keys(TileAsks* asks) {
    return is_left(asks->values) ? &asks->values : &asks->keys;
  }
};

}  // namespace regard::cpu

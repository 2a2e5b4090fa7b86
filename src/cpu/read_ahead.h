#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "cpu/simd/simd_vector.h"
#include "cpu/threads/cache_lines.h"
#include "semantics/tiles.h"

// Asks memory for the next tile of K and V while one is computed, where lanes lie along head_dim
// (asks.h is for row blocks). A core keeps few requests open (24 on a Zen 3) and stops at the next
// one until memory has answered, so there are as many of them as lines are read, beside the loads.
// Where lines follow one another the hardware asks by itself, far ahead; so heads that are
// neighbours in memory ask for whole keys, each for some of them. docs/dev/decisions.md has the
// figures.

namespace regard::cpu {

/// Rows that are `gap` bytes apart, from somewhere in the first one on.
struct RowsAhead {
  const char* at;
  const char* end;  // of the first row
  std::int64_t row_bytes;
  std::int64_t gap;
  std::int64_t rows;  // after the first
};

struct ReadAhead {
  RowsAhead keys;
  RowsAhead values;
};

/// Asked for in a loop that `turns` blocks of rows of q repeat, each its part.
struct Asking {
  RowsAhead next;
  std::int64_t turns;

  REGARD_KERNEL_FN std::int64_t part_of(const Asking& asking, std::int64_t lines) {
    return asking.turns == 1 ? lines : (lines + asking.turns - 1) / asking.turns;
  }
};

REGARD_KERNEL_FN RowsAhead rows_ahead(const char* first, std::int64_t rows, std::int64_t row_bytes,
                                      std::int64_t stride) {
  const std::int64_t gap = stride - row_bytes;
  if (gap >= 0 && gap < kLineBytes) return {first, first + rows * stride, 0, 0, 0};
  return {first, first + row_bytes, row_bytes, gap, rows - 1};
}

/// The share of a head in `keys` of k or v, which has `dim` elements in a row.
REGARD_KERNEL_FN RowsAhead share_ahead(const View& view, std::int64_t b, TaskHead task_head,
                                       semantics::KeyRange keys, std::int64_t dim) {
  const std::int64_t element = element_bytes(view.type);
  const std::int64_t stride = view.stride[2] * element;
  const std::int64_t head = view.stride[1] * element;
  const bool neighbours =
      task_head.count > 1 && head >= dim * element && task_head.count * head <= stride;
  const std::int64_t index = neighbours ? task_head.index : 0,
                     count = neighbours ? task_head.count : 1;
  const std::int64_t size = keys.hi - keys.lo;
  const std::int64_t begin = keys.lo + size * index / count;
  const std::int64_t end = keys.lo + size * (index + 1) / count;
  if (begin == end) return {};
  return rows_ahead(row_address(view, b, task_head.head_kv - index, begin), end - begin,
                    (count - 1) * head + dim * element, stride);
}

/// The tile after `tile`.
REGARD_KERNEL_FN ReadAhead read_ahead(const Problem& p, std::int64_t b, TaskHead task_head,
                                      semantics::Tile tile) {
  const std::int64_t begin = tile.begin + tile.size;
  if (begin >= p.seqlen_kv) return {};
  const semantics::KeyRange keys{begin, semantics::clamp(begin + tile.size, 0, p.seqlen_kv)};
  return {share_ahead(p.k, b, task_head, keys, p.head_dim_qk),
          share_ahead(p.v, b, task_head, keys, p.head_dim_v)};
}

/// Prefetches the next `lines` lines into the L2: kUsual of them, unrolled, and the next call
/// prefetches those past `lines` again. kUsual = 0: in a loop, by which one row of q alone, where
/// nothing but memory counts, gains 1.2. Into the L1 a Zen 4 decodes at 0.55 to 0.8 of this rate.
template <int kUsual>
REGARD_KERNEL_FN void ask(RowsAhead* from, std::int64_t lines) {
  constexpr int kIntoL2 = 2;
  if (from->at >= from->end) return;
  if constexpr (kUsual > 0) {
    REGARD_UNROLL for (int x = 0; x < kUsual; ++x) {
      __builtin_prefetch(from->at + x * kLineBytes, 0, kIntoL2);
    }
  } else {
    for (std::int64_t x = 0; x < lines; ++x) {
      __builtin_prefetch(from->at + x * kLineBytes, 0, kIntoL2);
    }
  }
  from->at += lines * kLineBytes;
  if (from->at < from->end || from->rows == 0) return;
  --from->rows;
  from->at = from->end + from->gap;
  from->end = from->at + from->row_bytes;
}

}  // namespace regard::cpu

#pragma once

#include <cstdint>

#include "cpu/kv_operand.h"
#include "cpu/problem.h"
#include "cpu/simd/simd_vector.h"
#include "semantics/tiles.h"

// Prefetches of K and V for the loops that multiply the tile before. Each loop prefetches a few
// lines at a time: a core keeps few requests open (24 on a Zen 3) and stops at the next one until
// memory has answered. docs/dev/decisions/cpu.md has the figures.

namespace regard::cpu {

inline constexpr std::int64_t kLineBytes = 64;  // of the caches

REGARD_KERNEL_FN constexpr std::int64_t lines_of(std::int64_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes;
}

/// Into the L2: into the L1 a Zen 4 decodes at 0.55 to 0.8 of this rate.
inline constexpr int kIntoL2 = 2;

/// What is left to prefetch of rows `stride` bytes apart.
struct PrefetchCursor {
  const char* at;                        // the next line
  const char* end;                       // of the row that `at` is in
  std::int64_t row_bytes;                // of every later row
  std::int64_t stride;                   // bytes from one row to the next
  std::int64_t rows;                     // left, the current one included
  const PrefetchCursor* then = nullptr;  // what a prefetch goes on with
  bool in_pairs = false;                 // prefetch_rows takes two lines of a row at a time
};

REGARD_KERNEL_FN bool is_left(const PrefetchCursor& cursor) { return cursor.at < cursor.end; }

/// Goes on `count` rows later, once the end of a row is reached; where there is none, nothing is
/// left.
REGARD_KERNEL_FN void skip_rows(PrefetchCursor* cursor, std::int64_t count) {
  cursor->rows -= count;
  if (cursor->rows <= 0) return;
  cursor->end += count * cursor->stride;
  cursor->at = cursor->end - cursor->row_bytes;
}

/// Prefetches the next line, or two, of each of kRows rows; after their last lines come the next
/// kRows rows.
template <int kRows>
REGARD_KERNEL_FN void prefetch_rows(PrefetchCursor* cursor) {
  if (!is_left(*cursor)) return;
  const auto prefetch_line = [&]() __attribute__((always_inline)) {
    REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
      __builtin_prefetch(cursor->at + i * cursor->stride, 0, kIntoL2);
    }
    cursor->at += kLineBytes;
  };
  prefetch_line();
  if (cursor->in_pairs) prefetch_line();
  if (is_left(*cursor)) return;
  skip_rows(cursor, kRows);
  if (!is_left(*cursor) && cursor->then != nullptr) *cursor = *cursor->then;
}

/// Prefetches, to be written, sums [kRows][stride] that a product is about to be added to: an L2,
/// or what lies behind it, has answered by then.
template <class V, int kRows, int kVectors>
REGARD_KERNEL_FN void prefetch_sums(const typename V::Scalar* sums, std::int64_t stride) {
  constexpr int kLine = static_cast<int>(kLineBytes / sizeof(*sums));
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    REGARD_UNROLL for (int x = 0; x < kVectors * V::kLanes; x += kLine) {
      __builtin_prefetch(sums + i * stride + x, 1);
    }
  }
}

/// The keys of the tile that follows; empty after the last one.
REGARD_KERNEL_FN semantics::KeyRange keys_after(const KvOperand& x, semantics::Tile tile) {
  const std::int64_t end = tile.begin + tile.size;
  return {end, semantics::clamp(end + tile.size, 0, x.keys)};
}

/// Rows of some keys, for prefetch_rows; nothing where they do not follow one another.
REGARD_KERNEL_FN PrefetchCursor rows_cursor(const KvOperand& x, semantics::KeyRange keys) {
  if (keys.lo >= keys.hi || !is_one_run(x, keys.lo, keys.hi)) return {};
  const char* const first = row_of(x, keys.lo);
  const std::int64_t row_bytes = bytes_of(x.type, x.dim);
  return {first, first + row_bytes, row_bytes, x.stride, keys.hi - keys.lo};
}

/// A task's rows of `view`, queries or outputs of `dim` elements, for prefetch_rows; nothing where
/// the heads of a group do not follow one another.
REGARD_KERNEL_FN PrefetchCursor task_cursor(const Problem& p, const View& view, std::int64_t dim,
                                            TaskRows rows) {
  const std::int64_t bytes = element_bytes(view.type), head_bytes = dim * bytes;
  if (rows.begin >= rows.end || (p.group_size > 1 && view.stride[1] * bytes != head_bytes))
    return {};
  const std::int64_t begin = rows.begin / p.group_size;
  const std::int64_t end = (rows.end + p.group_size - 1) / p.group_size;
  const char* const first = row_address(view, rows.b, rows.head_kv * p.group_size, begin);
  const std::int64_t row_bytes = p.group_size * head_bytes;
  return {first, first + row_bytes, row_bytes, view.stride[2] * bytes, end - begin};
}

/// What a task prefetches at the end of its keys.
struct TaskPrefetch {
  PrefetchCursor keys;     // of the next task's first tile
  PrefetchCursor queries;  // of the next task
  PrefetchCursor outs;     // that the task is about to write
};

REGARD_KERNEL_FN TaskPrefetch task_prefetch(const Problem& p, const TaskOrder& order,
                                            std::int64_t tile_kv) {
  TaskPrefetch made{};
  made.outs = task_cursor(p, p.out, p.head_dim_v, order.now);
  if (order.next.begin >= order.next.end) return made;
  const KvOperand k = k_operand(p, order.next.b, order.next.head_kv);
  const Sequence s = sequence_of(p, order.next.b);
  const std::int64_t first = semantics::visible_keys(s.band, order.next.begin / p.group_size).lo;
  const std::int64_t begin = semantics::clamp(first / tile_kv * tile_kv, 0, k.keys);
  made.keys = rows_cursor(k, {begin, semantics::clamp(begin + tile_kv, 0, k.keys)});
  made.queries = task_cursor(p, p.q, p.head_dim_qk, order.next);
  return made;
}

/// What the row blocks of a head prefetch at a tile of K and V, by prefetch_rows.
struct TilePrefetch {
  PrefetchCursor left;     // the tile's values, then
  PrefetchCursor keys;     // the next tile's; or those that the next task begins with,
  PrefetchCursor queries;  // its queries,
  PrefetchCursor outs;     // and this task's outputs
  bool with_values;        // in products with values, too

  REGARD_KERNEL_FN void start(const KvOperand& k, const KvOperand& v, TaskHead task_head,
                              semantics::Tile tile, const TaskPrefetch& task, TilePrefetch* self) {
    constexpr std::int64_t kFew = 2;
    const std::int64_t row_blocks = task_head.row_blocks;
    const semantics::KeyRange after = keys_after(k, tile);
    const bool is_last = after.lo >= after.hi || after.lo >= task_head.reach_end;
    const auto followed = [&](PrefetchCursor cursor, const PrefetchCursor& then)
        __attribute__((always_inline)) {
      if (!is_left(cursor)) return then;
      cursor.then = is_left(then) ? &then : nullptr;
      cursor.in_pairs = is_last && row_blocks == 1;  // or the few products leave some out
      return cursor;
    };
    self->with_values = row_blocks <= kFew;
    self->outs = is_last ? followed(task.outs, {}) : PrefetchCursor{};
    self->queries = is_last ? followed(task.queries, self->outs) : PrefetchCursor{};
    self->keys = followed(is_last ? task.keys : rows_cursor(k, after), self->queries);
    self->left = followed(rows_cursor(v, {tile.begin, tile.begin + tile.size}), self->keys);
  }
};

}  // namespace regard::cpu

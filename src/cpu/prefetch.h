#pragma once

#include <cstdint>

#include "cpu/kv_operand.h"
#include "cpu/problem.h"
#include "cpu/simd/simd_vector.h"
#include "cpu/split.h"
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

/// Requests the first line of each page of memory that begins in [at, at + bytes), so that its
/// address is translated when prefetches get there: those behind one that waits for a translation
/// wait, too (virtual machines need some 200 cycles for it).
REGARD_KERNEL_FN void touch_pages(const char* at, std::int64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const std::int64_t to_page = static_cast<std::int64_t>(-address & (kMemoryPage - 1));
  for (std::int64_t x = to_page; x < bytes; x += kMemoryPage) {
    __builtin_prefetch(at + x, 0, kIntoL2);
  }
}

/// The same of rows that follow one another; others share their pages with the heads beside them.
REGARD_KERNEL_FN void touch_pages(const PrefetchCursor& rows) {
  if (is_left(rows) && rows.stride == rows.row_bytes) touch_pages(rows.at, rows.rows * rows.stride);
}

/// The keys of the next task's first tile; those of all its rows but the task's own where tile_kv
/// is 0.
REGARD_KERNEL_FN semantics::KeyRange next_keys(const Problem& p, const TaskOrder& order,
                                               std::int64_t tile_kv) {
  if (tile_kv > 0 && p.window_left < 0) return {0, tile_kv};
  const auto keys_of = [&](const TaskRows& rows) __attribute__((always_inline)) {
    return semantics::visible_keys(sequence_of(p, rows.b).band, rows.begin / p.group_size,
                                   (rows.end - 1) / p.group_size + 1);
  };
  semantics::KeyRange keys = keys_of(order.next);
  if (tile_kv > 0) {
    const std::int64_t begin = keys.lo / tile_kv * tile_kv;
    return {begin, begin + tile_kv};
  }
  if (order.next.b == order.now.b && order.next.head_kv == order.now.head_kv) {
    const std::int64_t end = keys_of(order.now).lo;
    if (end < keys.hi) keys.hi = end;
  }
  return keys;
}

/// What a task prefetches at the end of its keys, one after the other.
struct TaskPrefetch {
  PrefetchCursor outs;          // that the task is about to write, then
  PrefetchCursor keys;          // of the next task's first tile,
  PrefetchCursor values;        // the same where that is all of its keys, and
  PrefetchCursor queries;       // of the next task
  const PrefetchCursor* first;  // of those that are not empty

  REGARD_KERNEL_FN void start(const Problem& p, const TaskOrder& order, std::int64_t tile_kv,
                              TaskPrefetch* self) {
    self->first = nullptr;
    const auto put_first = [&](PrefetchCursor * cursor) __attribute__((always_inline)) {
      if (!is_left(*cursor)) return;
      cursor->then = self->first;
      cursor->in_pairs = order.row_blocks == 1;  // or the few products leave some out
      self->first = cursor;
    };
    if (order.next.begin < order.next.end) {
      const KvOperand k = k_operand(p, order.next.b, order.next.head_kv);
      const KvOperand v = v_operand(p, order.next.b, order.next.head_kv);
      semantics::KeyRange keys = next_keys(p, order, tile_kv);
      keys = {semantics::clamp(keys.lo, 0, k.keys), semantics::clamp(keys.hi, 0, k.keys)};
      self->queries = task_cursor(p, p.q, p.head_dim_qk, order.next);
      put_first(&self->queries);
      self->values = rows_cursor(v, keys);
      if (tile_kv == 0) put_first(&self->values);
      self->keys = rows_cursor(k, keys);
      put_first(&self->keys);
    }
    self->outs = task_cursor(p, p.out, p.head_dim_v, order.now);
    put_first(&self->outs);
  }

  /// Touches the pages of what start() has found, and of the next task's outs. In start(), 16
  /// tokens take 1.05 times as long where it is left out.
  static __attribute__((noinline)) void touch(const Problem& p, const TaskOrder& order,
                                              const TaskPrefetch& self) {
    if (order.next.begin >= order.next.end) return;
    touch_pages(self.values);
    touch_pages(self.keys);
    touch_pages(self.queries);
    touch_pages(task_cursor(p, p.out, p.head_dim_v, order.next));
  }

  /// Where the outs are written without being read.
  REGARD_KERNEL_FN void leave_out_outs(TaskPrefetch* self) {
    if (self->first == &self->outs) self->first = self->outs.then;
  }
};

/// What the row blocks of a head prefetch at a tile of K and V, by prefetch_rows.
struct TilePrefetch {
  PrefetchCursor left;  // the tile's values, then
  PrefetchCursor keys;  // the next tile's, or what the task prefetches at the end
  bool with_values;     // in products with values, too

  REGARD_KERNEL_FN void start(const KvOperand& k, const KvOperand& v, const TaskHead& task_head,
                              semantics::Tile tile, const TaskPrefetch& task,
                              std::int64_t row_blocks, TilePrefetch* self) {
    constexpr std::int64_t kFew = 2;
    const semantics::KeyRange after = keys_after(k, tile);
    const bool is_last = after.lo >= after.hi || after.lo >= task_head.reach_end;
    const PrefetchCursor* then = is_last ? task.first : nullptr;
    if (!is_last) {
      self->keys = rows_cursor(k, after);
      if (is_left(self->keys)) then = &self->keys;
    }
    self->with_values = row_blocks <= kFew || is_last;
    self->left = rows_cursor(v, {tile.begin, tile.begin + tile.size});
    if (is_left(self->left)) {
      self->left.then = then;
      self->left.in_pairs = is_last && row_blocks == 1;
    } else if (then != nullptr) {
      self->left = *then;
    }
  }
};

}  // namespace regard::cpu

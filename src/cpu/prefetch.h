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
  const PrefetchCursor* then = nullptr;  // what prefetch_rows goes on with
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

/// Prefetches the next `lines` lines of a row: kUsual of them, unrolled, and the next call
/// prefetches those past `lines` again. kUsual = 0: in a loop, by which one row of q alone, where
/// nothing but memory counts, gains 1.2.
template <int kUsual>
REGARD_KERNEL_FN void prefetch_lines(PrefetchCursor* cursor, std::int64_t lines) {
  if (!is_left(*cursor)) return;
  if constexpr (kUsual > 0) {
    REGARD_UNROLL for (int x = 0; x < kUsual; ++x) {
      __builtin_prefetch(cursor->at + x * kLineBytes, 0, kIntoL2);
    }
  } else {
    for (std::int64_t x = 0; x < lines; ++x) {
      __builtin_prefetch(cursor->at + x * kLineBytes, 0, kIntoL2);
    }
  }
  cursor->at += lines * kLineBytes;
  if (!is_left(*cursor)) skip_rows(cursor, 1);
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

/// The keys that decode rows prefetch at a tile: the next one's; in pages, which no hardware
/// prefetcher goes through, those of a later one.
REGARD_KERNEL_FN semantics::KeyRange keys_ahead(const KvOperand& x, semantics::Tile tile) {
  constexpr std::int64_t kTilesBetween = 3;
  if (x.pages.ids != nullptr) tile.begin += kTilesBetween * tile.size;
  return tile.begin < x.keys ? keys_after(x, tile) : semantics::KeyRange{};
}

/// Rows of some keys, for prefetch_rows; nothing where they do not follow one another.
REGARD_KERNEL_FN PrefetchCursor rows_cursor(const KvOperand& x, semantics::KeyRange keys) {
  if (keys.lo >= keys.hi || !is_one_run(x, keys.lo, keys.hi)) return {};
  const char* const first = row_of(x, keys.lo);
  const std::int64_t row_bytes = bytes_of(x.type, x.dim);
  return {first, first + row_bytes, row_bytes, x.stride, keys.hi - keys.lo};
}

/// Prefetches the row of one key, for loops that copy keys of pages one by one.
REGARD_KERNEL_FN void prefetch_key(const KvOperand& x, std::int64_t j) {
  const char* const row = row_of(x, j);
  const std::int64_t row_bytes = bytes_of(x.type, x.dim);
  for (std::int64_t at = 0; at < row_bytes; at += kLineBytes) {
    __builtin_prefetch(row + at, 0, kIntoL2);
  }
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

/// A head's share of `keys`, for prefetch_lines. Where a key's heads are neighbours in memory every
/// head of a task prefetches whole keys, a part of them each: the hardware goes on by itself, far
/// ahead, where lines follow one another.
REGARD_KERNEL_FN PrefetchCursor lines_cursor(const KvOperand& x, TaskHead task_head,
                                             semantics::KeyRange keys) {
  const std::int64_t head_bytes = bytes_of(x.type, x.dim);
  const bool neighbours = task_head.count > 1 && x.head_stride >= head_bytes &&
                          task_head.count * x.head_stride <= x.stride;
  const std::int64_t index = neighbours ? task_head.index : 0,
                     count = neighbours ? task_head.count : 1;
  const std::int64_t size = keys.hi - keys.lo;
  const std::int64_t begin = keys.lo + size * index / count;
  const std::int64_t end = keys.lo + size * (index + 1) / count;
  if (begin == end || !is_one_run(x, begin, end)) return {};
  const char* const first = row_of(x, begin) - index * x.head_stride;
  const std::int64_t row_bytes = (count - 1) * x.head_stride + head_bytes;
  const std::int64_t gap = x.stride - row_bytes;
  if (gap >= 0 && gap < kLineBytes) return {first, first + (end - begin) * x.stride, 0, 0, 1};
  return {first, first + row_bytes, row_bytes, x.stride, end - begin};
}

/// The tile after the current one, for prefetch_lines.
struct NextTilePrefetch {
  PrefetchCursor keys;
  PrefetchCursor values;
};

REGARD_KERNEL_FN NextTilePrefetch next_tile_prefetch(const KvOperand& k, const KvOperand& v,
                                                     TaskHead task_head, semantics::Tile tile) {
  const semantics::KeyRange keys = keys_ahead(k, tile);
  if (keys.lo >= keys.hi) return {};
  return {lines_cursor(k, task_head, keys), lines_cursor(v, task_head, keys)};
}

/// A cursor that a loop over keys advances; `repeats` blocks of rows of q run that loop.
struct RepeatedPrefetch {
  PrefetchCursor cursor;
  std::int64_t repeats;
};

/// Of `lines` lines those that each of the loops prefetches.
REGARD_KERNEL_FN std::int64_t lines_each(const RepeatedPrefetch& prefetch, std::int64_t lines) {
  return prefetch.repeats == 1 ? lines : (lines + prefetch.repeats - 1) / prefetch.repeats;
}

}  // namespace regard::cpu

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
  const char* at;          // the next line
  const char* end;         // of the row that `at` is in
  std::int64_t row_bytes;  // of every later row
  std::int64_t stride;     // bytes from one row to the next
  std::int64_t rows;       // left, the current one included
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

/// Prefetches the next line of each of kRows rows; after their last lines come the next kRows rows.
template <int kRows>
REGARD_KERNEL_FN void prefetch_rows(PrefetchCursor* cursor) {
  if (!is_left(*cursor)) return;
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(cursor->at + i * cursor->stride, 0, kIntoL2);
  }
  cursor->at += kLineBytes;
  if (!is_left(*cursor)) skip_rows(cursor, kRows);
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
  const std::int64_t row_bytes = x.dim * element_bytes(x.type);
  return {first, first + row_bytes, row_bytes, x.stride, keys.hi - keys.lo};
}

/// Prefetches the row of one key, for loops that copy keys of pages one by one.
REGARD_KERNEL_FN void prefetch_key(const KvOperand& x, std::int64_t j) {
  const char* const row = row_of(x, j);
  const std::int64_t row_bytes = x.dim * element_bytes(x.type);
  for (std::int64_t at = 0; at < row_bytes; at += kLineBytes) {
    __builtin_prefetch(row + at, 0, kIntoL2);
  }
}

/// What the row blocks of a head prefetch at a tile of K and V, by prefetch_rows: the tile's values
/// and the next tile's keys.
struct TilePrefetch {
  PrefetchCursor values;          // in products with keys
  PrefetchCursor keys;            // in those after them,
  PrefetchCursor few_row_blocks;  // or, where memory bounds them, in products with values
};

REGARD_KERNEL_FN TilePrefetch tile_prefetch(const KvOperand& k, const KvOperand& v,
                                            std::int64_t row_blocks, semantics::Tile tile) {
  constexpr std::int64_t kFew = 2;
  const PrefetchCursor values = rows_cursor(v, {tile.begin, tile.begin + tile.size});
  const PrefetchCursor keys = rows_cursor(k, keys_after(k, tile));
  if (row_blocks <= kFew) return {values, {}, keys};
  return {values, keys, {}};
}

/// For the next product with keys.
REGARD_KERNEL_FN PrefetchCursor* cursor_with_keys(TilePrefetch* prefetch) {
  return is_left(prefetch->values) ? &prefetch->values : &prefetch->keys;
}

/// A head's share of `keys`, for prefetch_lines. Where a key's heads are neighbours in memory every
/// head of a task prefetches whole keys, a part of them each: the hardware goes on by itself, far
/// ahead, where lines follow one another.
REGARD_KERNEL_FN PrefetchCursor lines_cursor(const KvOperand& x, TaskHead task_head,
                                             semantics::KeyRange keys) {
  const std::int64_t head_bytes = x.dim * element_bytes(x.type);
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

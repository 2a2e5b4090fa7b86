#pragma once

#include <cstdint>

#include "cpu/forward/tiled.h"
#include "cpu/kv_operand.h"
#include "cpu/prefetch.h"
#include "cpu/problem.h"
#include "cpu/split.h"
#include "semantics/tiles.h"

// What decode rows prefetch while they multiply a tile, and where the keys of pages lie: both found
// a tile at a time, without divisions, for they take as long as the products of a key.

namespace regard::cpu {

/// Keys of a tile that lie in several pages come in so many at a time, and so many times at most.
inline constexpr std::int64_t kRunKeys = kDecodeTileKv;
inline constexpr int kRunLog2 = 4;
static_assert(kRunKeys == 1 << kRunLog2);
inline constexpr int kMaxRuns = static_cast<int>(kMaxDecodeTileKv / kRunKeys);

/// What is left to prefetch of a later tile: rows of a run of keys, then those of later runs.
struct LinesCursor {
  const char* at;          // the next line
  const char* end;         // of the row that `at` is in
  std::int64_t row_bytes;  // of every later row
  std::int64_t stride;     // bytes from one row to the next of a run
  std::int64_t rows;       // left of the run, the current one included
  std::int64_t runs;       // left, the current one not included
  std::int64_t run_rows;   // of each of them
  const PageRun* run;      // the current one
  // Where runs lie.
  const char* first;
  std::int64_t page_stride;
};

REGARD_KERNEL_FN bool is_left(const LinesCursor& cursor) { return cursor.at < cursor.end; }

/// Prefetches the next `lines` lines of a row: kUsual of them, unrolled, and the next call
/// prefetches those past `lines` again. kUsual = 0: in a loop, by which one row of q alone, where
/// nothing but memory counts, gains 1.2. kMayHalve: below 0 `lines` are -lines, half of
/// kUsual unrolled (a flag beside it takes a register more, and 1.15 of the time).
template <int kUsual, bool kMayHalve = false>
REGARD_KERNEL_FN void prefetch_lines(LinesCursor* cursor, std::int64_t lines) {
  if (!is_left(*cursor)) return;
  const auto prefetch = [&](auto usual, std::int64_t count) __attribute__((always_inline)) {
    if constexpr (decltype(usual)::value > 0) {
      REGARD_UNROLL for (int x = 0; x < decltype(usual)::value; ++x) {
        __builtin_prefetch(cursor->at + x * kLineBytes, 0, kIntoL2);
      }
    } else {
      for (std::int64_t x = 0; x < count; ++x) {
        __builtin_prefetch(cursor->at + x * kLineBytes, 0, kIntoL2);
      }
    }
    cursor->at += count * kLineBytes;
  };
  if (!kMayHalve || lines >= 0) {
    prefetch(Count<kUsual>{}, lines);
  } else {
    prefetch(Count<(kUsual + 1) / 2>{}, -lines);
  }
  if (is_left(*cursor)) return;
  if (--cursor->rows > 0) {
    cursor->end += cursor->stride;
  } else if (cursor->runs > 0) {
    --cursor->runs;
    cursor->rows = cursor->run_rows;
    const PageRun run = *++cursor->run;
    cursor->end = cursor->first + run.page * cursor->page_stride + run.row * cursor->stride +
                  cursor->row_bytes;
  } else {
    return;
  }
  cursor->at = cursor->end - cursor->row_bytes;
}

/// A cursor that a loop over keys advances; `repeats` blocks of rows of q run that loop.
struct RepeatedPrefetch {
  LinesCursor cursor;
  std::int64_t repeats;
  bool is_half = false;  // the loop reads copies twice as long as the rows in memory
};

/// What prefetch_lines takes in each of the loops, which read `lines` lines. Where rows in memory
/// are half as long, as many came twice as fast as they are read: f8e4m3 took 1.5 times as long on
/// a Zen 5.
REGARD_KERNEL_FN std::int64_t lines_each(const RepeatedPrefetch& prefetch, std::int64_t lines) {
  const std::int64_t in_memory = prefetch.is_half ? (lines + 1) / 2 : lines;
  const std::int64_t each =
      prefetch.repeats == 1 ? in_memory : (in_memory + prefetch.repeats - 1) / prefetch.repeats;
  return prefetch.is_half ? -each : each;
}

/// What the heads of a task prefetch of K, or V. Where a key's heads are neighbours in memory every
/// head prefetches whole keys, some of a tile's each: the hardware goes on by itself, far ahead,
/// where lines follow one another.
struct TaskAhead {
  std::int64_t tile_kv;
  std::int64_t bytes;    // of a key, of all heads that are neighbours
  std::int64_t share;    // keys of a tile that each head prefetches
  std::int64_t between;  // tiles between the next one and that
  bool neighbours;
  bool is_run;  // keys follow one another, but for less than a line
  bool touches_pages;
};

/// `run_keys`: of pages, else 0.
REGARD_KERNEL_FN TaskAhead task_ahead(const TiledArgs& a, const KvOperand& x, std::int64_t heads,
                                      std::int64_t run_keys) {
  const std::int64_t tile_kv = a.decode_tile_kv;
  TaskAhead ahead{tile_kv, bytes_of(x.type, x.dim), tile_kv, 0, false, false, false};
  ahead.neighbours = heads > 1 && x.head_stride >= ahead.bytes && heads * x.head_stride <= x.stride;
  if (ahead.neighbours) {
    ahead.bytes += (heads - 1) * x.head_stride;
    ahead.share = (tile_kv + heads - 1) / heads;
    if (run_keys > 1) {  // whole runs, or shares that lie within one
      std::int64_t even = 1;
      while (even < ahead.share) even *= 2;
      ahead.share = even;
    }
  }
  const std::int64_t gap = x.stride - ahead.bytes, tile_bytes = tile_kv * ahead.bytes;
  ahead.is_run = gap >= 0 && gap < kLineBytes;
  // One page a tile, of BHSD, is 0.9 to 0.95 times as fast when it is touched.
  ahead.touches_pages = a.touches_pages && run_keys == 0 && tile_bytes >= 2 * kMemoryPage;
  if (run_keys > 0) {
    ahead.between = 1;  // no hardware prefetcher goes from page to page
  } else if (tile_bytes > 0) {
    ahead.between = (kMemoryPage - 1) / tile_bytes;
  }
  return ahead;
}

/// The keys of a tile that a head prefetches, and where the first head's lie from its own.
struct HeadShare {
  std::int64_t begin, end;
  std::int64_t offset;  // bytes
};
REGARD_KERNEL_FN HeadShare head_share(const KvOperand& x, const TaskAhead& ahead,
                                      std::int64_t index) {
  if (!ahead.neighbours) return {0, ahead.tile_kv, 0};
  const std::int64_t begin = ahead.share * index, end = begin + ahead.share;
  return {begin, end < ahead.tile_kv ? end : ahead.tile_kv, index * x.head_stride};
}

/// Where the keys of the tile at hand, and of those that are prefetched meanwhile, lie in pages:
/// found once for K and V and for all heads of a task. Nothing is cleared: calls of few keys would
/// take 1.1 times as long.
class PageRuns {
 public:
  static constexpr std::int64_t kAhead = 2;  // tiles behind the one at hand
  /// Keys of a run: 0 where there are no pages.
  std::int64_t run_keys() const { return run_keys_; }

  /// Begins a task's keys at `tile`; `x` is K.
  void start(const KvOperand& x, semantics::Tile tile, std::int64_t tile_kv) {
    const KvPages& pages = x.pages;
    run_keys_ = 0;
    if (pages.ids == nullptr) return;
    run_keys_ = pages.size % kRunKeys == 0 && pages.skipped % kRunKeys == 0 ? kRunKeys : 1;
    tile_kv_ = tile_kv;
    tile_log2_ = __builtin_ctzll(static_cast<unsigned long long>(tile_kv));
    const std::int64_t row = pages.skipped + tile.begin;
    index_ = row / pages.size;
    row_ = row - index_ * pages.size;
    found_ = touched_ = tile.begin;
  }

  /// Requests a line of each page of memory that the keys of some tiles behind those that are found
  /// lie in. Several at once: a random page's address takes 150 ns to translate, 16 of them 250,
  /// and prefetches wait for it.
  void touch(const KvOperand& k, const KvOperand& v, const TaskAhead& of_keys,
             const TaskAhead& of_values) {
    if (touched_ > found_) return;
    const std::int64_t tile_bytes = of_keys.tile_kv * of_keys.bytes;
    const std::int64_t tiles = tile_bytes < kTouchBytes ? kTouchBytes / tile_bytes : 1;
    touched_ = found_ + tiles * of_keys.tile_kv;
    const std::int64_t end = touched_ < k.keys ? touched_ : k.keys;
    std::int64_t index = index_, row = row_;
    for (std::int64_t j = found_; j < end; ++index, row = 0) {
      const std::int64_t left = k.pages.size - row, keys = left < end - j ? left : end - j;
      const PageRun run{page_at(k.pages, index), static_cast<std::int32_t>(row)};
      touch_run(k, of_keys, run, keys);
      touch_run(v, of_values, run, keys);
      j += keys;
    }
  }

  /// Finds those of the tiles up to kAhead behind `tile`.
  void find(const KvOperand& x, semantics::Tile tile) {
    const std::int64_t end = tile.begin + (kAhead + 1) * tile_kv_;
    const std::int64_t last = end < x.keys ? end : x.keys;
    while (found_ < last) find_tile(x);
  }

  /// A few lines between products: the softmax leaves memory idle, and of prefetches that come
  /// faster than a line a 2 ns a Zen 4 drops up to a sixth. Without pages [B,S,H,D] would take 1.04
  /// times as long.
  void prefetch_some(LinesCursor* cursor) const {
    constexpr std::int64_t kEach = 4, kTimes = 2;
    for (std::int64_t x = 0; run_keys_ > 0 && x < kTimes && is_left(*cursor); ++x) {
      const std::int64_t left = lines_of(cursor->end - cursor->at);
      prefetch_lines<0>(cursor, left < kEach ? left : kEach);
    }
  }

  /// Those of the tile from key `begin` on.
  const PageRun* of_tile(std::int64_t begin) const { return runs_[slot_of(begin)]; }

 private:
  static constexpr std::int64_t kTiles = 4;
  static_assert(kAhead < kTiles);

  /// Of K, and as many of V: 8 pages of 16 keys of 256 bytes.
  static constexpr std::int64_t kTouchBytes = 32 << 10;

  /// Of the tile that begins at a key, other than those of the three before and behind it: tiles
  /// have an odd number times a power of two of keys.
  std::int64_t slot_of(std::int64_t begin) const { return (begin >> tile_log2_) & (kTiles - 1); }

  REGARD_KERNEL_FN std::int32_t page_at(const KvPages& pages, std::int64_t index) {
    const std::int32_t id = pages.ids[index * pages.id_step];
    return id > 0 ? id : 0;
  }

  /// Rows of the first head of a task.
  REGARD_KERNEL_FN void touch_run(const KvOperand& x, const TaskAhead& ahead, PageRun run,
                                  std::int64_t keys) {
    const char* const at = row_of(x, run);
    const std::int64_t bytes = (keys - 1) * x.stride + ahead.bytes;
    for (std::int64_t y = 0; y < bytes; y += kMemoryPage) __builtin_prefetch(at + y, 0, kIntoL2);
  }

  void find_tile(const KvOperand& x) {
    const KvPages& pages = x.pages;
    PageRun* to = runs_[slot_of(found_)];
    const std::int64_t tile_end = found_ + tile_kv_;
    const std::int64_t end = tile_end < x.keys ? tile_end : x.keys;
    for (; found_ < end; found_ += run_keys_) {
      *to++ = {page_at(pages, index_), static_cast<std::int32_t>(row_)};
      row_ += run_keys_;
      if (row_ < pages.size) continue;
      row_ = 0;
      ++index_;
    }
    found_ = tile_end;
  }

  PageRun runs_[kTiles][kMaxDecodeTileKv];
  std::int64_t run_keys_ = 0;
  std::int64_t tile_kv_;
  std::int64_t tile_log2_;  // of the power of two
  std::int64_t found_;      // the first key whose run is not found
  std::int64_t index_;      // its page in the table
  std::int64_t row_;        // its row of that
  std::int64_t touched_;    // the first key whose page of memory is not touched
};

/// touch_pages() of `keys`.
REGARD_KERNEL_FN void touch_pages(const KvOperand& x, const TaskAhead& ahead,
                                  semantics::KeyRange keys) {
  if (keys.lo >= keys.hi) return;
  const char* at = row_of(x, keys.lo);
  if (ahead.is_run) return touch_pages(at, (keys.hi - keys.lo) * x.stride);
  for (std::int64_t j = keys.lo; j < keys.hi; ++j, at += x.stride) touch_pages(at, ahead.bytes);
}

/// What head `index` of a task prefetches of K, or V, at a tile: as many tiles ahead as have
/// kMemoryPage bytes, in pages two; pages of memory may be touched another tile ahead.
REGARD_KERNEL_FN LinesCursor lines_ahead(const KvOperand& x, const TaskAhead& ahead,
                                         std::int64_t index, const PageRuns& pages,
                                         semantics::Tile tile) {
  const std::int64_t tile_kv = ahead.tile_kv;
  const std::int64_t begin = tile.begin + (ahead.between + 1) * tile_kv;
  const std::int64_t run_keys = pages.run_keys();
  if (ahead.touches_pages && index == 0) {
    const std::int64_t end = begin + 2 * tile_kv;
    touch_pages(x, ahead, {begin + tile_kv, end < x.keys ? end : x.keys});
  }
  const HeadShare share = head_share(x, ahead, index);
  const std::int64_t lo = begin + share.begin, end = begin + share.end;
  const std::int64_t hi = end < x.keys ? end : x.keys;
  if (lo >= hi) return {};
  LinesCursor cursor;
  cursor.stride = x.stride;
  std::int64_t keys = hi - lo;  // of the first run
  if (run_keys == 0) {
    cursor.runs = 0;
    cursor.at = row_of(x, lo) - share.offset;
  } else {
    keys = keys < run_keys ? keys : run_keys;
    const int run_log2 = run_keys == kRunKeys ? kRunLog2 : 0;
    cursor.runs = (hi - lo - keys + run_keys - 1) >> run_log2;
    cursor.run = pages.of_tile(begin) + (share.begin >> run_log2);
    const std::int64_t within = share.begin & (run_keys - 1);
    cursor.at = row_of(x, *cursor.run) - share.offset + within * x.stride;
    cursor.first = x.first - share.offset;
    cursor.page_stride = x.pages.stride;
  }
  cursor.row_bytes = ahead.is_run ? keys * x.stride : ahead.bytes;
  cursor.rows = cursor.run_rows = ahead.is_run ? 1 : keys;
  cursor.end = cursor.at + cursor.row_bytes;
  return cursor;
}

}  // namespace regard::cpu

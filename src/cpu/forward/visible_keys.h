#pragma once

#include <cstdint>

#include "cpu/forward/edit_scores.h"
#include "cpu/forward/row_block.h"
#include "problem/function_intervals.h"

// The keys of a tile that a row block computes. The diagonal, windows and lengths are arithmetic; a
// mask and segment ids are looked at: padding, documents and causal masks that come as tensors
// leave out whole tiles, and most of the others need no masking. What is left out would add -0.

namespace regard::cpu {

/// Keys go by blocks of 8 where only a part of a tile is visible.
inline constexpr std::int64_t kKeyBlock = 8;

/// Joins blocks of keys, in their order, that some row sees.
class VisibleBlocks {
 public:
  /// The block at `begin`: whether any row sees any of it, and every row all of it.
  REGARD_KERNEL_FN void add(VisibleBlocks* self, std::int64_t begin, bool any, bool every) {
    if (!any) return;
    if (self->end_ == 0) self->begin_ = begin;
    const bool has_gap = self->end_ != 0 && self->end_ != begin;
    self->all_ = self->all_ && every && !has_gap;
    self->end_ = begin + kKeyBlock;
  }

  /// What is left of `seen`, which the blocks were counted from.
  REGARD_KERNEL_FN VisibleKeys narrowed(const VisibleBlocks& self, VisibleKeys seen) {
    const std::int64_t end = self.end_ < seen.range.size ? self.end_ : seen.range.size;
    return {{seen.range.begin + self.begin_, end - self.begin_},
            seen.all && self.all_,
            seen.all_but_edits && self.all_};
  }

 private:
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;  // 0: no block yet
  bool all_ = true;
};

/// The keys of `tile` from the first to the last that the row block may see by arithmetic.
template <class V>
REGARD_KERNEL_FN Tile reach_within(const RowBlock<V>& row_block, Tile tile) {
  const semantics::KeyRange keys = reach(row_block);
  const std::int64_t end = tile.begin + tile.size;
  const std::int64_t lo = semantics::clamp(keys.lo / kKeyBlock * kKeyBlock, tile.begin, end);
  const std::int64_t hi = semantics::clamp(keys.hi, tile.begin, end);
  const std::int64_t blocks = (hi - tile.begin + kKeyBlock - 1) / kKeyBlock;
  const std::int64_t rounded = tile.begin + blocks * kKeyBlock;
  const std::int64_t size = (rounded < end ? rounded : end) - lo;
  return {lo, size > 0 ? size : 0};
}

/// Bytes [j, j + sizeof(Words)) of a mask's row, the last key's again past its `size`.
template <class Words>
REGARD_KERNEL_FN Words load_mask(const char* row, std::int64_t j, std::int64_t size) {
  Words words;
  if (j + static_cast<std::int64_t>(sizeof(words)) <= size) {
    __builtin_memcpy(&words, row + j, sizeof(words));
    return words;
  }
  char bytes[sizeof(words)];
  for (std::int64_t x = 0; x < static_cast<std::int64_t>(sizeof(words)); ++x) {
    bytes[x] = row[j + x < size ? j + x : size - 1];
  }
  __builtin_memcpy(&words, bytes, sizeof(words));
  return words;
}

/// A block of keys is a word of 8 bytes, a vector of them is looked at in 7 instructions: less than
/// a hundredth of what the tile's products take.
template <class V>
static VisibleKeys within_mask(const View& mask, const RowBlock<V>& row_block, VisibleKeys seen) {
  using Words = typename VectorTypes<double, sizeof(typename V::Vec)>::Unsigned;
  constexpr int kWords = sizeof(Words) / kKeyBlock;
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHighs = kOnes << 7;
  if (mask.stride[3] != 1) return {seen.range, false, false};  // not looked at
  const EditRows<V> rows = edit_rows(mask, row_block, seen.range);
  VisibleBlocks blocks;
  for (std::int64_t j = 0; j < seen.range.size; j += kWords * kKeyBlock) {
    Words any{}, has_zero{};
    for (int w = 0; w < row_block.rows; ++w) {
      if (w > 0 && rows.row[w] == rows.row[w - 1]) continue;
      const Words words = load_mask<Words>(rows.row[w], j, seen.range.size);
      any |= words;
      has_zero |= (words - kOnes) & ~words & kHighs;  // not 0 where one of a word's bytes is
    }
    for (int x = 0; x < kWords && j + x * kKeyBlock < seen.range.size; ++x) {
      VisibleBlocks::add(&blocks, j + x * kKeyBlock, any[x] != 0, has_zero[x] == 0);
    }
  }
  return VisibleBlocks::narrowed(blocks, seen);
}

/// Rows see nothing outside the range of their segments, and everything where all are of one.
template <class V>
static VisibleKeys within_segments(const View& segments, const RowBlock<V>& row_block,
                                   VisibleKeys seen) {
  std::int32_t low = row_block.segment[0], high = low;
  for (int w = 1; w < row_block.rows; ++w) {
    low = row_block.segment[w] < low ? row_block.segment[w] : low;
    high = row_block.segment[w] > high ? row_block.segment[w] : high;
  }
  VisibleBlocks blocks;
  for (std::int64_t j = 0; j < seen.range.size; j += kKeyBlock) {
    const std::int64_t left = seen.range.size - j;
    bool any = false, every = low == high;
    for (std::int64_t x = 0; x < (left < kKeyBlock ? left : kKeyBlock); ++x) {
      const std::int64_t at = row_index(segments, row_block.b, 0, seen.range.begin + j + x);
      const std::int32_t segment = *element_at<std::int32_t>(segments, at);
      const bool inside = low <= segment && segment <= high;
      any = any || inside;
      every = every && inside;
    }
    VisibleBlocks::add(&blocks, j, any, every);
  }
  return VisibleBlocks::narrowed(blocks, seen);
}

/// What a mask function is over keys [begin, begin + size) of a row block.
enum class MaskBlock : std::uint8_t { kEmpty = 0, kPartial, kFull };

/// By block_mask where it is given.
template <class V>
static MaskBlock known_block(const Functions& f, const RowBlock<V>& row_block, Tile keys) {
  const std::int64_t last_q = (row_block.i_end - 1) / f.block_size_q;
  const std::int64_t last_kv = (keys.begin + keys.size - 1) / f.block_size_kv;
  bool any = false, every = true;
  for (int w = 0; w < row_block.rows; ++w) {
    if (w > 0 && (f.blocks.stride[1] == 0 || row_block.head[w] == row_block.head[w - 1])) continue;
    for (std::int64_t i = row_block.i_begin / f.block_size_q; i <= last_q; ++i) {
      const std::int64_t row = row_block.b * f.blocks.stride[0] +
                               row_block.head[w] * f.blocks.stride[1] + i * f.blocks.stride[2];
      for (std::int64_t j = keys.begin / f.block_size_kv; j <= last_kv; ++j) {
        const auto known = *element_at<std::uint8_t>(f.blocks, row + j * f.blocks.stride[3]);
        any = any || known != 0;
        every = every && known == 2;
      }
    }
  }
  return !any ? MaskBlock::kEmpty : every ? MaskBlock::kFull : MaskBlock::kPartial;
}

/// By the ends of what its steps can be.
static __attribute__((noinline)) MaskBlock bounded_block(const Functions& f,
                                                         const problem::FunctionBox& box) {
  constexpr std::int64_t kElements =
      1024;  // of a captured tensor: a tile's keys, a block's queries
  problem::Interval bounds[semantics::kMaxFunctionSteps];
  problem::bound_steps(f.mask, f.captured, box, kElements, bounds);
  const problem::Interval result = bounds[f.mask.result];
  return result.hi == 0.0   ? MaskBlock::kEmpty
         : result.lo == 1.0 ? MaskBlock::kFull
                            : MaskBlock::kPartial;
}

template <class V>
static problem::FunctionBox box_of(const Sequence& s, const RowBlock<V>& row_block) {
  const auto range = [](std::int64_t lo, std::int64_t hi) __attribute__((always_inline)) {
    return problem::Interval{static_cast<double>(lo), static_cast<double>(hi)};
  };
  std::int64_t low = row_block.head[0], high = low;
  for (int w = 1; w < row_block.rows; ++w) {
    low = row_block.head[w] < low ? row_block.head[w] : low;
    high = row_block.head[w] > high ? row_block.head[w] : high;
  }
  problem::FunctionBox box;
  box.b = range(row_block.b, row_block.b);
  box.h = range(low, high);
  box.q = range(row_block.i_begin, row_block.i_end - 1);
  box.position = range(row_block.position[0], row_block.position[row_block.rows - 1]);
  box.len_q = range(s.len_q, s.len_q);
  box.len_kv = range(s.band.len_kv, s.band.len_kv);
  return box;
}

/// The mask function over the keys, and where it may be either over parts of them.
template <class V>
static VisibleKeys within_function(const Problem& p, const Sequence& s,
                                   const RowBlock<V>& row_block, VisibleKeys seen) {
  const Functions& f = *p.functions;
  problem::FunctionBox box = box_of(s, row_block);
  const auto block_of = [&](Tile keys) {
    if (f.blocks.present) return known_block(f, row_block, keys);
    box.kv = {static_cast<double>(keys.begin), static_cast<double>(keys.begin + keys.size - 1)};
    return bounded_block(f, box);
  };
  if (seen.range.size == 0) return seen;
  const MaskBlock all = block_of(seen.range);
  if (all == MaskBlock::kFull) return seen;
  if (all == MaskBlock::kEmpty) return {{seen.range.begin, 0}, false, false};
  constexpr std::int64_t kPart = 4 * kKeyBlock;
  VisibleBlocks blocks;
  for (std::int64_t j = 0; j < seen.range.size; j += kPart) {
    const std::int64_t left = seen.range.size - j, size = left < kPart ? left : kPart;
    const MaskBlock part = block_of({seen.range.begin + j, size});
    for (std::int64_t x = 0; x < size; x += kKeyBlock) {
      VisibleBlocks::add(&blocks, j + x, part != MaskBlock::kEmpty, part == MaskBlock::kFull);
    }
  }
  return VisibleBlocks::narrowed(blocks, seen);
}

/// The keys of `tile` that the row block computes. A bias may hold -inf, and a score function give
/// it: they are not looked at, and nothing is taken for visible to all.
template <class V>
static VisibleKeys visible_keys_of(const Problem& p, const Sequence& s,
                                   const RowBlock<V>& row_block, Tile tile) {
  const auto by_arithmetic = semantics::classify_tile(s.band, row_block.i_begin, row_block.i_end,
                                                      tile.begin, tile.begin + tile.size, false);
  if (by_arithmetic == semantics::TileClass::kEmpty) return {{tile.begin, 0}, false, false};
  const bool is_full = by_arithmetic == semantics::TileClass::kFull;
  const bool has_tree = p.tree.present && tile.begin + tile.size > row_block.tree_begin;
  const bool all_but_edits = is_full && !has_tree;
  VisibleKeys seen{is_full ? tile : reach_within(row_block, tile),
                   all_but_edits && !p.bias.present && !p.edits_by_function, all_but_edits};
  if (p.segments_q.present) seen = within_segments<V>(p.segments_kv, row_block, seen);
  if (p.mask.present) seen = within_mask<V>(p.mask, row_block, seen);
  if (p.masks_by_function) seen = within_function<V>(p, s, row_block, seen);
  return seen;
}

}  // namespace regard::cpu

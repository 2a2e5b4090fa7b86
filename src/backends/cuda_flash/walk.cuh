#pragma once

#include <cstdint>

#include "backends/cuda_flash/groups.cuh"
#include "cuda/split.cuh"
#include "cuda/swizzle.cuh"

// How a block of rows passes over the tiles of keys that any of them sees: while one is computed
// the next come.

namespace regard::cuda_flash {

using cuda::Problem;
using cuda::Sequence;

/// A choice of the compiler's, as an argument.
template <bool kValue>
struct Flag {
  static constexpr bool kIs = kValue;
};

/// Where the scales of a block's first rows lie.
template <bool kCodes>
struct ScaleRows {};
template <>
struct ScaleRows<true> {
  char *of_keys, *of_values;
};

/// `Sizes` states kDims, kRows, kKeys, kThreads, kStages, kSplit, kCodes, kPaged, kHasTree and
/// kAtStages; with kCodes also kGroups, kCodeBytes, kScales, kStageBytes and kAtTile.
template <class Sizes>
struct TileWalk {
  static constexpr int kDims = Sizes::kDims, kKeys = Sizes::kKeys, kThreads = Sizes::kThreads;
  static constexpr int kStages = Sizes::kStages;
  static constexpr int kPartBytes = kKeys * kDims * static_cast<int>(sizeof(std::uint16_t));

  /// What a block's tiles have in common. Tiles are counted from the first. In shared memory: in
  /// registers it was spilled.
  struct Walk {
    std::int64_t number;  // of the task
    cuda::HeadTask task;
    std::int64_t first;         // key
    char *keys, *values;        // rows of the first, or of page 0's first
    const std::int32_t* pages;  // ids of the sequence's; null: its rows follow one another
    std::int64_t first_row;     // of the first key in its pages
    std::int64_t rows_q;        // of the sequence
    std::int64_t kv_entries;    // extent 0 of k and v
    std::int64_t rows;          // from there to the sequence's last key
    int tiles;                  //
    int full_begin, full_end;   // tiles that all rows see
    std::int64_t tree_begin;    // the key of tree_mask's first column; with kHasTree
    [[no_unique_address]] ScaleRows<Sizes::kCodes> scales;
  };
  static constexpr int kBytes = Sizes::kCodes ? 256 : 128;
  static_assert(sizeof(Walk) <= kBytes);

  template <class Block>
  REGARD_DEVICE_FN auto of(const Block& block) {
    return block.template shared<Walk>(0, 1);
  }

  /// The first of the warp's rows, and of the lane's in the m-th 16 of them.
  template <class Block>
  REGARD_DEVICE_FN int warp_row(const Block& block) {
    constexpr int kRowsOfWarp = Sizes::kRows / (kThreads / cuda::kWarp);
    return block.thread() / cuda::kWarp * kRowsOfWarp;
  }
  template <class Block>
  REGARD_DEVICE_FN int lane_row(const Block& block, int m) {
    return warp_row(block) + m * cuda::kWarpRows + block.thread() % cuda::kWarp / 4;
  }

  REGARD_DEVICE_FN cuda::RowBlock rows_of(const Problem& p, const cuda::HeadTask& task,
                                          std::int64_t rows_q) {
    const std::int64_t index = Sizes::kSplit ? 0 : task.block;
    return cuda::group_rows<Sizes::kRows>(p, {task.b, rows_q}, task.head_kv, index);
  }

  REGARD_DEVICE_FN Walk make(const Problem& p, std::int64_t number, const cuda::HeadTask& task,
                             const Sequence& s, std::int64_t kv_entries) {
    const cuda::Reach reach = cuda::reach_of(p, rows_of(p, task, s.rows_q), s);
    const semantics::TileSpan tiles =
        semantics::tiles_of(cuda::keys_of_block<Sizes::kSplit>(reach, s, task), kKeys);
    Walk walk{};
    walk.number = number;
    walk.task = task;
    walk.first = tiles.begin * kKeys;
    const cuda::KeyPlace place = cuda::place_of_keys(p, s, kv_entries);
    walk.keys = cuda::key_address(p.k, place, task.head_kv, walk.first);
    walk.values = cuda::key_address(p.v, place, task.head_kv, walk.first);
    if constexpr (Sizes::kCodes) {
      walk.scales.of_keys = cuda::key_address(p.scales_k, place, task.head_kv, walk.first);
      walk.scales.of_values = cuda::key_address(p.scales_v, place, task.head_kv, walk.first);
    }
    walk.pages = place.ids;
    walk.first_row = place.skipped + walk.first;
    walk.rows = place.entry < 0 ? 0 : s.band.len_kv - walk.first;
    walk.rows_q = s.rows_q;
    walk.kv_entries = kv_entries;
    const std::int64_t count = tiles.end - tiles.begin;
    // As classify() says tile by tile.
    const auto tile_of = [&](std::int64_t key) {
      const std::int64_t tile = semantics::clamp(key - tiles.begin, 0, count);
      return static_cast<int>(reach.has_data_mask ? 0 : tile);
    };
    walk.tiles = static_cast<int>(count);
    walk.full_begin = tile_of((reach.last.lo + kKeys - 1) / kKeys);
    walk.full_end = tile_of(reach.first.hi / kKeys);
    if constexpr (Sizes::kHasTree) {
      walk.tree_begin = cuda::tree_columns(p, s).begin;
      const int tree_tile = tile_of(walk.tree_begin / kKeys);
      if (p.tree.present && tree_tile < walk.full_end) walk.full_end = tree_tile;
    }
    return walk;
  }

  /// Calls f(number of the task) for the block's share of the grid's tasks. cuda::for_each_task()
  /// has its number in registers, which were spilled.
  template <class Block, class F>
  REGARD_DEVICE_FN void for_each_task(const Block& block, std::int64_t tasks, F f) {
    std::int64_t task = block.index();
    while (task < tasks) {
      f(task);
      const Walk walk = of(block)[0];
      task = walk.number + block.count();
      block.sync();
    }
  }

  /// Rows of keys, part 0, or values, part 1, in a stage: of codes, as products read them.
  template <class Block>
  REGARD_DEVICE_FN auto stage_part(const Block& block, int stage, int part) {
    return block.template shared<std::uint16_t>(part_at(stage, part), kKeys * kDims);
  }
  REGARD_DEVICE_FN int part_at(int stage, int part) {
    if constexpr (Sizes::kCodes) return Sizes::kAtTile + part * kPartBytes;
    return Sizes::kAtStages + (2 * stage + part) * kPartBytes;
  }

  /// Codes of a stage's part, as T, and their scales.
  template <class T, class Block>
  REGARD_DEVICE_FN auto codes(const Block& block, int stage, int part) {
    constexpr int kBytesOfPart = kKeys * Sizes::kCodeBytes;
    const int at = Sizes::kAtStages + stage * Sizes::kStageBytes + part * kBytesOfPart;
    return block.template shared<T>(at, kBytesOfPart / static_cast<int>(sizeof(T)));
  }
  template <class Block>
  REGARD_DEVICE_FN auto scales(const Block& block, int stage, int part) {
    constexpr int kCount = kKeys * Sizes::kScales;
    const int at = Sizes::kAtStages + stage * Sizes::kStageBytes + 2 * kKeys * Sizes::kCodeBytes;
    return block.template shared<float>(at + part * kCount * static_cast<int>(sizeof(float)),
                                        kCount);
  }

  /// Begins to copy a tile to a stage.
  template <class Block>
  REGARD_DEVICE_FN void begin_tile(const Block& block, const Problem& p, int tile, int stage) {
    const std::int64_t begin = static_cast<std::int64_t>(tile) * kKeys;
    const Walk walk = of(block)[0];
    const semantics::Tile part{begin, walk.rows - begin};
    if constexpr (Sizes::kCodes) return begin_codes_tile(block, p, walk, part, stage);
    if constexpr (Sizes::kPaged) {
      if (walk.pages != nullptr) return begin_paged_tile(block, p, walk, part, stage);
    }
    cuda::begin_rows<kKeys, kDims, kThreads>(
        block, cuda::rows_from(p.k, walk.keys, part, p.head_dim_qk), stage_part(block, stage, 0));
    cuda::begin_rows<kKeys, kDims, kThreads>(
        block, cuda::rows_from(p.v, walk.values, part, p.head_dim_v), stage_part(block, stage, 1));
  }

  template <class Block>
  REGARD_DEVICE_FN void begin_paged_tile(const Block& block, const Problem& p, const Walk& walk,
                                         const semantics::Tile& part, int stage) {
    const semantics::Tile rows{walk.first_row + part.begin, part.size};
    const cuda::KeyPages pages = cuda::pages_of(p, {0, walk.pages}, walk.kv_entries);
    const auto keys = cuda::paged_rows(p.k, walk.keys, pages, rows, p.head_dim_qk);
    const auto values = cuda::paged_rows(p.v, walk.values, pages, rows, p.head_dim_v);
    cuda::begin_rows<kKeys, kDims, kThreads>(block, keys, stage_part(block, stage, 0));
    cuda::begin_rows<kKeys, kDims, kThreads>(block, values, stage_part(block, stage, 1));
  }

  template <class Block>
  REGARD_DEVICE_FN void begin_codes_tile(const Block& block, const Problem& p, const Walk& walk,
                                         const semantics::Tile& part, int stage) {
    const cuda::KeyPlace place{0, walk.pages, walk.first_row};
    const cuda::KeyPages pages = cuda::pages_of(p, place, walk.kv_entries);
    const auto rows_of = [&](const problem::View& view, char* base, std::int64_t columns) {
      return cuda::cached_rows(view, place, base, pages, part, columns);
    };
    constexpr int kBytesOfRow = Sizes::kCodeBytes, kPerByte = kDims / kBytesOfRow;
    begin_codes<kKeys, kBytesOfRow, kPerByte, kThreads>(
        block, rows_of(p.k, walk.keys, p.head_dim_qk), codes<std::uint16_t>(block, stage, 0));
    begin_codes<kKeys, kBytesOfRow, kPerByte, kThreads>(
        block, rows_of(p.v, walk.values, p.head_dim_v), codes<std::uint16_t>(block, stage, 1));
    const auto scales_k = rows_of(p.scales_k, walk.scales.of_keys, 1);
    const auto scales_v = rows_of(p.scales_v, walk.scales.of_values, 1);
    if constexpr (Sizes::kGroups) {
      begin_group_scales<kKeys, kDims, kThreads>(block, scales_k, p.head_dim_qk,
                                                 scales(block, stage, 0));
      begin_group_scales<kKeys, kDims, kThreads>(block, scales_v, p.head_dim_v,
                                                 scales(block, stage, 1));
      return;
    }
    static_assert(kThreads >= 2 * kKeys);
    const int r = block.thread() % kKeys, of = block.thread() / kKeys;
    if (of == 0) {
      begin_scale(block, scales_k, p.scales_k.present, r, scales(block, stage, 0));
    } else if (of == 1) {
      begin_scale(block, scales_v, p.scales_v.present, r, scales(block, stage, 1));
    }
  }

  /// A stage's codes to the tile that products read. No thread reads that any more.
  template <Element kType, class Block>
  REGARD_DEVICE_FN void widen(const Block& block, const Problem& p, int stage) {
    REGARD_DEVICE_NO_UNROLL
    for (int part = 0; part < 2; ++part) {
      // Beside queries that are multiplied by scales of columns.
      if (kType != Element::kBf16 && part == 0 && p.channel_scales_k.present) {
        widen_part<Element::kBf16>(block, p, stage, part);
      } else {
        widen_part<kType>(block, p, stage, part);
      }
    }
    block.sync();  // no thread reads the tile before it is whole
  }

  template <Element kType, class Block>
  REGARD_DEVICE_FN void widen_part(const Block& block, const Problem& p, int stage, int part) {
    const auto tile = block.template shared<std::uint32_t>(part_at(stage, part), kKeys * kDims / 2);
    if constexpr (Sizes::kGroups) {
      widen_groups<kType, kKeys, kDims, kThreads>(block, part == 0 ? 0.0f : kValueCentre,
                                                  codes<std::uint32_t>(block, stage, part), tile);
    } else {
      widen_tile<kType, kKeys, kDims, kThreads>(block, part == 0 ? p.k.type : p.v.type,
                                                codes<std::uint64_t>(block, stage, part), tile);
    }
  }

  /// Where a block is in its tiles.
  struct Ring {
    int stage, free_stage;
    int tile, tiles;
  };

  /// Waits for the next tile, and begins to copy a later one; the stage that it lies in.
  template <class Block>
  REGARD_DEVICE_FN int next_tile(const Block& block, const Problem& p, Ring* ring) {
    block.template wait_groups<kStages - 2>();
    block.sync();  // the tile is there, and no thread reads the last one
    const int next = ring->tile + kStages - 1, stage = ring->stage;
    if (next < ring->tiles) begin_tile(block, p, next, ring->free_stage);
    block.commit_copies();
    ring->free_stage = stage;
    ring->stage = stage == kStages - 1 ? 0 : stage + 1;
    ++ring->tile;
    return stage;
  }

  /// Calls f(masked, tile, stage, is_full) for all tiles; `masked` is a Flag: some rows may not see
  /// all of the tile. kHasFull: that of full ones is false.
  template <bool kHasFull, class Block, class F>
  REGARD_DEVICE_FN void for_each_tile(const Block& block, const Problem& p, F f) {
    const Walk walk = of(block)[0];
    const int tiles = block.uniform(walk.tiles);
    const int full_begin = block.uniform(walk.full_begin);
    const int full_end = block.uniform(walk.full_end);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kStages - 1; ++n) {
      if (n < tiles) begin_tile(block, p, n, n);
      block.commit_copies();
    }
    // Loops of their own: in one, sums would change registers where its two bodies meet.
    Ring ring{0, kStages - 1, 0, tiles};
    const bool has_full = kHasFull && full_begin < full_end;
    int masked_end = has_full ? full_begin : tiles;
    for (;;) {
      REGARD_DEVICE_NO_UNROLL
      while (ring.tile < masked_end) {
        const int tile = ring.tile, stage = next_tile(block, p, &ring);
        f(Flag<true>(), tile, stage, tile >= full_begin && tile < full_end);
      }
      if (ring.tile == tiles) break;
      if constexpr (kHasFull) {
        REGARD_DEVICE_NO_UNROLL
        while (ring.tile < full_end) {
          const int tile = ring.tile, stage = next_tile(block, p, &ring);
          f(Flag<false>(), tile, stage, true);
        }
      }
      masked_end = tiles;
    }
    block.template wait_groups<0>();
  }
};

}  // namespace regard::cuda_flash

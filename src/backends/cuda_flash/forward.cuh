#pragma once

#include <cstdint>

#include "backends/cuda_flash/tile.cuh"
#include "cuda/split.cuh"

// FLASH's forward: a block has 128 rows of all heads that read one kv head, and passes over the
// tiles of keys that any of them sees; while one is computed the next come. A full tile has no
// branch between its first load and its last product. Values are taken for finite: where an output
// is not, the block computes once more, and products with values leave out what is hidden.

namespace regard::cuda_flash {

struct TileArgs {
  ForwardArgs forward{};
  float factor = 1.0f;  // of score differences in the base-2 exponent
};

template <Element kType, int kDims, Kind kKind>
struct ForwardKernel {
  using Args = TileArgs;
  using S = Shape<kDims, kKind>;
  using L = Layout<kDims, kKind>;
  static constexpr bool kSplit = kKind == Kind::kSplit;
  static constexpr int kMinSm = 80;
  static constexpr int kThreads = S::kThreads;
  static constexpr int kBlocks = kThreads > 128 ? 1 : 2;
  static constexpr int kSharedBytes = L::kBytes;
  static constexpr int kRowBlocks = S::kRowBlocks, kKeys = S::kKeys;
  using Outputs = WarpSums<kDims>[kRowBlocks];

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    return {kSplit ? semantics::split_count(p.seqlen_kv) : cuda::count_row_blocks<S::kRows>(p), 1};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.forward.problem;
    // cuda::for_each_task() has its number in registers, which were spilled.
    std::int64_t task = block.index();
    while (task < cuda::count_tasks(p, grid(p))) {
      run_task(block, args, task);
      const Walk walk = walk_of(block)[0];
      task = walk.number + block.count();
      block.sync();
    }
  }

  /// What a block's tiles have in common. Tiles are counted from the first. In shared memory: in
  /// registers it was spilled.
  struct Walk {
    std::int64_t number;  // of the task
    cuda::HeadTask task;
    std::int64_t first;        // key
    char *keys, *values;       // rows of the first
    std::int64_t rows;         // from there to the sequence's last key
    int tiles;                 //
    int full_begin, full_end;  // tiles that all rows see
  };
  static_assert(sizeof(Walk) <= L::kWalkBytes);

  REGARD_DEVICE_FN Walk make_walk(const Problem& p, std::int64_t number, const cuda::HeadTask& task,
                                  const Sequence& s) {
    const cuda::Reach reach = cuda::reach_of(p, rows_of(p, task), s);
    const semantics::TileSpan tiles =
        semantics::tiles_of(cuda::keys_of_block<kSplit>(reach, s, task), kKeys);
    Walk walk{};
    walk.number = number;
    walk.task = task;
    walk.first = tiles.begin * kKeys;
    walk.keys = problem::row_address(p.k, task.b, task.head_kv, walk.first);
    walk.values = problem::row_address(p.v, task.b, task.head_kv, walk.first);
    walk.rows = s.band.len_kv - walk.first;
    const std::int64_t count = tiles.end - tiles.begin;
    // As classify() says tile by tile.
    const auto tile_of = [&](std::int64_t key) {
      const std::int64_t tile = semantics::clamp(key - tiles.begin, 0, count);
      return static_cast<int>(reach.has_data_mask ? 0 : tile);
    };
    walk.tiles = static_cast<int>(count);
    walk.full_begin = tile_of((reach.last.lo + kKeys - 1) / kKeys);
    walk.full_end = tile_of(reach.first.hi / kKeys);
    return walk;
  }

  template <class Block>
  REGARD_DEVICE_FN auto walk_of(const Block& block) {
    return block.template shared<Walk>(0, 1);
  }

  REGARD_DEVICE_FN cuda::RowBlock rows_of(const Problem& p, const cuda::HeadTask& task) {
    return cuda::group_rows<S::kRows>(p, task.b, task.head_kv, kSplit ? 0 : task.block);
  }

  template <class RowBounds, class Shared, class SharedWalk>
  struct Pass {
    const Args& args;
    RowBounds bounds;
    Shared queries;
    SharedWalk walk;
  };

  template <class Block>
  REGARD_DEVICE_FN auto stage_part(const Block& block, int stage, int part) {
    const int at = L::kAtStages + stage * L::kStageBytes + part * L::kStageBytes / 2;
    return block.template shared<std::uint16_t>(at, L::kTileElements);
  }

  /// The first of the warp's rows, and of the lane's.
  template <class Block>
  REGARD_DEVICE_FN int warp_row(const Block& block) {
    return block.thread() / kWarp * kWarpRows * kRowBlocks;
  }
  template <class Block>
  REGARD_DEVICE_FN int lane_row(const Block& block, int m) {
    return warp_row(block) + m * kWarpRows + block.thread() % kWarp / 4;
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, std::int64_t number) {
    const Problem& p = args.forward.problem;
    const cuda::HeadTask task = cuda::head_task(p, grid(p), number);
    const Sequence s = problem::sequence_of(p, task.b);
    const cuda::RowBlock rows = rows_of(p, task);
    const auto walk = walk_of(block);
    const auto bounds = block.template shared<typename L::Row>(L::kAtBounds, S::kRows);
    const auto places = block.template shared<std::int64_t>(L::kAtPlaces, S::kRows);
    const auto queries = block.template shared<std::uint16_t>(L::kAtQueries, S::kRows * kDims);
    for (int r = block.thread(); r < S::kRows; r += kThreads) {
      const auto facts = cuda::row_facts<float>(p, s, rows, r);
      bounds[r] = Bounds<S::kEdits>::of(facts);
      places[r] = cuda::place_in(p.q, s.b, facts);
    }
    if (block.thread() == 0) walk[0] = make_walk(p, number, task, s);
    block.sync();
    if (kSplit && task.block >= semantics::split_count(s.band.len_kv)) return;
    const auto q = cuda::listed_rows(p.q, places, p.head_dim_qk);
    cuda::begin_rows<S::kRows, kDims, kThreads>(block, q, queries);

    const Pass<decltype(bounds), decltype(queries), decltype(walk)> pass{args, bounds, queries,
                                                                         walk};
    const bool has_sinks = S::kEdits && (!kSplit || task.block == 0);
    Softmax<kRowBlocks> state;
    Outputs out;
    run_tiles<false>(block, pass, has_sinks, &state, out);
    if (block.sync_or(has_non_finite(out))) {
      run_tiles<true>(block, pass, has_sinks, &state, out);
    }
    const Walk all = walk[0];
    if constexpr (kSplit) {
      if (semantics::split_count(problem::sequence_of(p, all.task.b).band.len_kv) > 1) {
        return write_split(block, args.forward, all.task, state, out);
      }
    }
    finish(block, p, all.task, state, out);
  }

  /// Begins to copy a tile to a stage.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void begin_tile(const Block& block, const ThisPass& pass, int tile, int stage) {
    const Problem& p = pass.args.forward.problem;
    const std::int64_t begin = static_cast<std::int64_t>(tile) * kKeys;
    const Walk walk = pass.walk[0];
    const semantics::Tile part{begin, walk.rows - begin};
    cuda::begin_rows<kKeys, kDims, kThreads>(
        block, cuda::rows_from(p.k, walk.keys, part, p.head_dim_qk), stage_part(block, stage, 0));
    cuda::begin_rows<kKeys, kDims, kThreads>(
        block, cuda::rows_from(p.v, walk.values, part, p.head_dim_v), stage_part(block, stage, 1));
  }

  /// All tiles: `out` becomes sums of probabilities and values. kSafe: values may be infinities or
  /// NaN.
  template <bool kSafe, class Block, class ThisPass>
  REGARD_DEVICE_FN void run_tiles(const Block& block, const ThisPass& pass, bool has_sinks,
                                  Softmax<kRowBlocks>* state, Outputs& out) {
    start(block, pass, has_sinks, state, out);
    const Walk walk = pass.walk[0];
    const int tiles = block.uniform(walk.tiles);
    const int full_begin = block.uniform(walk.full_begin);
    const int full_end = block.uniform(walk.full_end);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < S::kStages - 1; ++n) {
      if (n < tiles) begin_tile(block, pass, n, n);
      block.commit_copies();
    }
    // Loops of their own: in one, sums would change registers where its two bodies meet.
    Ring ring{0, S::kStages - 1, 0, tiles};
    const bool has_full = !kSafe && !S::kEdits && full_begin < full_end;
    int masked_end = has_full ? full_begin : tiles;
    for (;;) {
      REGARD_DEVICE_NO_UNROLL
      while (ring.tile < masked_end) {
        const int tile = ring.tile, stage = next_tile(block, pass, &ring);
        const bool is_full = tile >= full_begin && tile < full_end;
        add_tile<true, kSafe>(block, pass, tile, stage, is_full, state, out);
      }
      if (ring.tile == tiles) break;
      if constexpr (!kSafe && !S::kEdits) {
        REGARD_DEVICE_NO_UNROLL
        while (ring.tile < full_end) {
          const int tile = ring.tile, stage = next_tile(block, pass, &ring);
          add_tile<false, false>(block, pass, tile, stage, true, state, out);
        }
      }
      masked_end = tiles;
    }
    block.template wait_groups<0>();
  }

  /// Where a block is in its tiles.
  struct Ring {
    int stage, free_stage;
    int tile, tiles;
  };

  /// Waits for the next tile, and begins to copy a later one; the stage that it lies in.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN int next_tile(const Block& block, const ThisPass& pass, Ring* ring) {
    block.template wait_groups<S::kStages - 2>();
    block.sync();  // the tile is there, and no thread reads the last one
    const int next = ring->tile + S::kStages - 1, stage = ring->stage;
    if (next < ring->tiles) begin_tile(block, pass, next, ring->free_stage);
    block.commit_copies();
    ring->free_stage = stage;
    ring->stage = stage == S::kStages - 1 ? 0 : stage + 1;
    ++ring->tile;
    return stage;
  }

  /// A sink is a first key without a value; one lane of a row has it in its sum.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void start(const Block& block, const ThisPass& pass, bool has_sinks,
                              Softmax<kRowBlocks>* state, Outputs& out) {
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      cuda::clear(&out[m]);
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        state->max[m][i] = cuda::minus_infinity<float>();
        state->sum[m][i] = 0.0f;
        if constexpr (S::kEdits) {
          const cuda::RowFacts<float> row = pass.bounds[lane_row(block, m) + i * 8];
          if (has_sinks) state->max[m][i] = row.sink;
          const bool has_sink = state->max[m][i] != cuda::minus_infinity<float>();
          if (cuda::lane_column(block) == 0 && has_sink) state->sum[m][i] = kWeight<kType>;
        }
      }
    }
  }

  /// kMasked: some rows may not see all of the tile.
  template <bool kMasked, bool kSafe, class Block, class ThisPass>
  REGARD_DEVICE_FN void add_tile(const Block& block, const ThisPass& pass, int tile, int stage,
                                 bool is_full, Softmax<kRowBlocks>* state, Outputs& out) {
    const auto keys = stage_part(block, stage, 0), values = stage_part(block, stage, 1);
    WarpSums<kKeys> scores[kRowBlocks];
    cuda::multiply_rows<kType, kDims>(block, pass.queries, warp_row(block), keys, scores);
    const Walk walk = pass.walk[0];
    const std::int64_t first = walk.first + static_cast<std::int64_t>(tile) * kKeys;
    float rescale[kRowBlocks][kLaneRows];
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      if constexpr (S::kEdits) {
        edit(block, pass, walk.task.b, lane_row(block, m), first, is_full, &scores[m]);
      } else if constexpr (kMasked) {
        cuda::hide_by_arithmetic(block, pass.bounds, lane_row(block, m), first, &scores[m]);
      }
      exponentiate<kType, kSafe>(block, pass.args.factor, state->max[m], state->sum[m], &scores[m],
                                 rescale[m]);
      if constexpr (S::kEdits) {
        cuda::drop_lane_tile(block, pass.args.forward.problem, pass.bounds, lane_row(block, m),
                             first, &scores[m]);
      }
    }
    if constexpr (kSafe) {
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        rescale_sums(rescale[m], &out[m]);
        cuda::add_visible_terms<kType, cuda::Swizzle>(block, scores[m], values, 1.0f, &out[m]);
      }
    } else {
      cuda::WarpRows<kKeys> probs[kRowBlocks];
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        probs[m] = cuda::as_operand<kType>(scores[m], 1.0f);
      }
      cuda::rescale_add_product<kType>(block, probs, values, rescale, out);
    }
  }

  /// All that edits scores, in the order of semantics/score_edits.h.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void edit(const Block& block, const ThisPass& pass, std::int64_t b, int row,
                             std::int64_t first, bool is_full, WarpSums<kKeys>* scores) {
    const Problem& p = pass.args.forward.problem;
    if (!cuda::needs_scale_alone(p, is_full)) {
      return cuda::edit_lane_scores(block, p, b, pass.bounds, row, first, is_full, scores);
    }
    // The scale that is not in the softmax's factor.
    cuda::scale_by(p.prescale_scores  ? p.softmax_scale_f32
                   : p.negates_scores ? -1.0f
                                      : 1.0f,
                   scores);
    if (!is_full) cuda::hide_by_arithmetic(block, pass.bounds, row, first, scores);
  }

  REGARD_DEVICE_FN void rescale_sums(const float (&rescale)[kLaneRows], WarpSums<kDims>* out) {
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kDims / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) out->at[n][x] *= rescale[x / 2];
    }
  }

  template <class Block>
  REGARD_DEVICE_FN void write_split(const Block& block, const ForwardArgs& args,
                                    const cuda::HeadTask& task, const Softmax<kRowBlocks>& state,
                                    const Outputs& out) {
    const cuda::DenseRows to = cuda::rows_of_split(args, task);
    const int row = lane_row(block, 0);
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const float sum = cuda::sum_of_lanes(block, state.sum[0][i]) / kWeight<kType>;
      if (cuda::lane_column(block) != 0 || row + i * 8 >= to.count) continue;
      cuda::leave_stats(args, task, row + i * 8, state.max[0][i], sum);
    }
    cuda::write_sums<kType>(block, to, row, 0, out[0], {1.0f, 1.0f});
  }

  template <class Block>
  REGARD_DEVICE_FN void finish(const Block& block, const Problem& p, const cuda::HeadTask& task,
                               const Softmax<kRowBlocks>& state, const Outputs& out) {
    const cuda::RowBlock rows = rows_of(p, task);
    const cuda::QueryRows to = cuda::query_rows(p.out, rows, p.head_dim_v);
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      float share[kLaneRows];
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const float sum = cuda::sum_of_lanes(block, state.sum[m][i]) / kWeight<kType>;
        share[i] = cuda::inverse_sum(p, sum) / kWeight<kType>;
        const std::int64_t row = lane_row(block, m) + i * 8;
        if (cuda::lane_column(block) != 0 || row >= rows.count) continue;
        const std::int64_t query = cuda::RowBlock::query(rows, rows.begin + row);
        const std::int64_t head = rows.first_head + (rows.begin + row - query * rows.heads);
        const double max = static_cast<double>(state.max[m][i]) * p.score_unit;
        problem::write_row_stats(p, task.b, head, query, max, sum);
      }
      cuda::write_sums<kType>(block, to, lane_row(block, m), 0, out[m], share);
    }
  }
};

}  // namespace regard::cuda_flash

#pragma once

#include <cstdint>

#include "backends/cuda_flash/tile.cuh"
#include "backends/cuda_flash/wgmma_recompute.cuh"
#include "backends/cuda_flash/wgmma_shape.h"

// FLASH's forward for compute capability 9.0: one thread copies tiles by TMA, two or three
// warpgroups of 64 rows each multiply them by wgmma. A block has rows of one query head. Scores are
// scaled and hidden by arithmetic alone. As in forward.cuh, values are taken for finite; a warp
// whose sums are not computes its rows once more.

namespace regard::cuda_flash {

template <class Map>
struct WgmmaArgs {
  ForwardArgs forward{};
  float factor = 1.0f;  // of score differences in the base-2 exponent
  Map q, k, v;
};

template <Element kType, int kDims, Schedule kSchedule, class Map>
struct WgmmaForwardKernel {
  using Args = WgmmaArgs<Map>;
  using S = WgmmaShape<kDims, kSchedule>;
  static constexpr int kMinSm = 90;
  static constexpr int kThreads = S::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = S::kSharedBytes;
  static constexpr int kRows = S::kRows, kKeys = S::kKeys;

  REGARD_KERNEL_FN std::int64_t blocks_of(const Problem& p) {
    return (p.seqlen_q + kRows - 1) / kRows;
  }
  REGARD_KERNEL_FN std::int64_t count_tasks(const Problem& p) {
    return p.batch * p.num_heads_q * blocks_of(p);
  }

  /// Tiles are counted from the first.
  struct Tiles {
    int count;
    int full_begin, full_end;  // that all rows see
  };
  struct Walk {
    cuda::RowBlock rows;
    Sequence s;
    std::int64_t first;  // key of the first tile
    Tiles tiles;
  };

  /// The last block of rows comes first: under a causal mask it has the most keys. Heads of a group
  /// are neighbours, so that their K and V are read from L2.
  REGARD_DEVICE_FN Walk make_walk(const Problem& p, std::int64_t task) {
    const std::int64_t blocks = blocks_of(p);
    const std::int64_t index = blocks - 1 - task % blocks;
    task /= blocks;
    Walk walk{};
    walk.s = problem::sequence_of(p, task / p.num_heads_q);
    walk.rows = cuda::head_rows<kRows>(cuda::queries_of(walk.s), task % p.num_heads_q, index);
    const cuda::Reach reach = cuda::reach_of(p, walk.rows, walk.s);
    const semantics::TileSpan tiles = semantics::tiles_of(cuda::Reach::keys(reach), kKeys);
    walk.first = tiles.begin * kKeys;
    const std::int64_t count = tiles.end - tiles.begin;
    const auto tile_of = [&](std::int64_t key) {
      const std::int64_t tile = semantics::clamp(key - tiles.begin, 0, count);
      return static_cast<int>(reach.has_data_mask ? 0 : tile);
    };
    walk.tiles.count = static_cast<int>(count);
    walk.tiles.full_begin = tile_of((reach.last.lo + kKeys - 1) / kKeys);
    walk.tiles.full_end = tile_of(reach.first.hi / kKeys);
    return walk;
  }

  /// A stage and how often it was used, modulo 2: what its barriers are waited for by.
  struct Ring {
    int stage = 0, parity = 0;
  };
  REGARD_DEVICE_FN void advance(Ring* ring) {
    const bool wraps = ring->stage == S::kStages - 1;
    ring->stage = wraps ? 0 : ring->stage + 1;
    ring->parity ^= wraps ? 1 : 0;
  }
  REGARD_DEVICE_FN int at_part(int part, int stage) {
    return S::kAtStages + (2 * stage + part) * S::kPartBytes;
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    if (block.thread() == 0) {
      block.init_barrier(S::kQueriesFull, 1);
      block.init_barrier(S::kQueriesEmpty, S::kWarps);
      REGARD_DEVICE_UNROLL
      for (int n = 0; n < 2 * S::kStages; ++n) {
        block.init_barrier(S::full(n / S::kStages, n % S::kStages), 1);
        block.init_barrier(S::empty(n / S::kStages, n % S::kStages), S::kWarps);
      }
      block.fence_barriers();
    }
    block.sync();
    if (block.group() == 0) {
      block.template shrink_registers<S::kProducerRegisters>();
      if (block.thread() == 0) produce(block, args);
    } else {
      block.template grow_registers<S::kConsumerRegisters>();
      consume(block, args);
    }
  }

  // ---- the producer

  template <class Block>
  REGARD_DEVICE_FN void produce(const Block& block, const Args& args) {
    const Problem& p = args.forward.problem;
    const std::int64_t tasks = count_tasks(p);
    Ring ring;
    int parity = 0;  // of the queries
    for (std::int64_t task = block.index(); task < tasks; task += block.count()) {
      const Walk walk = make_walk(p, task);
      if (walk.tiles.count == 0) continue;
      const auto head = static_cast<int>(walk.rows.first_head);
      const auto batch = static_cast<int>(walk.rows.b);
      const int head_kv = head / static_cast<int>(p.group_size);
      block.wait(S::kQueriesEmpty, parity ^ 1);
      load_tile(block, args.q, S::kQueriesFull, S::kAtQueries, kRows,
                {0, static_cast<int>(walk.rows.begin), head, batch});
      parity ^= 1;
      REGARD_DEVICE_NO_UNROLL
      for (int tile = 0; tile < walk.tiles.count; ++tile) {
        const cuda::BoxPlace place{0, static_cast<int>(walk.first) + tile * kKeys, head_kv, batch};
        REGARD_DEVICE_UNROLL
        for (int part = 0; part < 2; ++part) {
          block.wait(S::empty(part, ring.stage), ring.parity ^ 1);
          load_tile(block, part == 0 ? args.k : args.v, S::full(part, ring.stage),
                    at_part(part, ring.stage), kKeys, place);
        }
        advance(&ring);
      }
    }
  }

  template <class Block>
  REGARD_DEVICE_FN void load_tile(const Block& block, const Map& map, int barrier, int to, int rows,
                                  const cuda::BoxPlace& place) {
    block.arrive_expecting(barrier, S::kBoxes * rows * cuda::kBoxRowBytes);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < S::kBoxes; ++n) {
      const cuda::BoxPlace box{n * cuda::kBoxColumns, place.row, place.head, place.batch};
      block.load_box(map, barrier, to + n * rows * cuda::kBoxRowBytes, box);
    }
  }

  // ---- consumers

  /// What a warpgroup holds, in registers.
  struct State {
    WarpSums<kDims> out[1];
    WarpSums<kKeys> scores;
    cuda::WarpRows<kKeys> probs;
    Softmax<1> softmax;
    Ring keys, values;
    int lo[kLaneRows], hi[kLaneRows];  // keys that the lane's rows see, from the walk's first on
  };

  template <class Block>
  REGARD_DEVICE_FN void consume(const Block& block, const Args& args) {
    const Problem& p = args.forward.problem;
    const std::int64_t tasks = count_tasks(p);
    const int group = block.group() - 1;
    State state;
    int parity = 0;  // of the queries
    if (S::kTurns && group == 1) block.arrive_part(kTurn, kTurnThreads);
    for (std::int64_t task = block.index(); task < tasks; task += block.count()) {
      const Tiles tiles = start(block, make_walk(p, task), group, &state);
      if (tiles.count > 0) {
        block.wait(S::kQueriesFull, parity);
        if constexpr (S::kOverlaps) {
          add_overlapped(block, args, tiles, group, &state);
        } else {
          REGARD_DEVICE_NO_UNROLL
          for (int tile = 0; tile < tiles.count; ++tile) {
            add_tile(block, args, tiles, group, tile, &state);
          }
        }
        release(block, S::kQueriesEmpty);
        parity ^= 1;
      }
      // Again: kept over the tiles, its numbers were spilled.
      finish(block, args, make_walk(p, task + cuda::opaque(0)), group, state);
    }
    if (S::kTurns && group == 0) block.sync_part(kTurn, kTurnThreads);  // the last turn is nobody's
  }

  /// Barriers of turns: kTurn + a warpgroup's number lets it multiply.
  static constexpr int kTurn = 1, kTurnThreads = 2 * S::kGroupThreads;

  template <class Block>
  REGARD_DEVICE_FN int warp_row(const Block& block, int group) {
    const int warp = block.thread() % S::kGroupThreads / kWarp;
    return group * S::kGroupRows + warp * kWarpRows;
  }

  template <class Block>
  REGARD_DEVICE_FN Tiles start(const Block& block, const Walk& walk, int group, State* state) {
    cuda::clear(&state->out[0]);
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      state->softmax.max[0][i] = cuda::minus_infinity<float>();
      state->softmax.sum[0][i] = 0.0f;
      const int row = warp_row(block, group) + block.thread() % kWarp / 4 + i * 8;
      const semantics::KeyRange keys = keys_of(walk, row);
      const auto from_first = [&](std::int64_t key) {
        const std::int64_t all = std::int64_t{walk.tiles.count} * kKeys;
        return static_cast<int>(semantics::clamp(key - walk.first, 0, all));
      };
      state->lo[i] = from_first(keys.lo);
      state->hi[i] = from_first(keys.hi);
    }
    return walk.tiles;
  }

  /// What row `row` of the block sees.
  REGARD_DEVICE_FN semantics::KeyRange keys_of(const Walk& walk, int row) {
    const std::int64_t query = walk.rows.begin + row;
    if (row >= walk.rows.count || query >= walk.s.len_q) return {0, 0};
    return semantics::visible_keys(walk.s.band, query);
  }

  /// One arrival a warp: wgmma is complete for each warp that has waited for it.
  template <class Block>
  REGARD_DEVICE_FN void release(const Block& block, int barrier) {
    if (block.thread() % kWarp == 0) block.arrive(barrier);
  }

  /// Begins scores = queries keys^T.
  template <class Block>
  REGARD_DEVICE_FN void begin_scores(const Block& block, int group, State* state) {
    constexpr int kEight = 8 * cuda::kBoxRowBytes;
    const int queries = S::kAtQueries + group * S::kGroupRows * cuda::kBoxRowBytes;
    const int keys = at_part(0, state->keys.stage);
    block.begin_products(state->scores);
    REGARD_DEVICE_UNROLL
    for (int k = 0; k < kDims / 16; ++k) {
      const int box = k / 4, in_row = k % 4 * 32;
      const int at_q = queries + box * kRows * cuda::kBoxRowBytes + in_row;
      const int at_k = keys + box * kKeys * cuda::kBoxRowBytes + in_row;
      block.template multiply<kType>(cuda::operand_descriptor(block.address(at_q), 16, kEight),
                                     cuda::operand_descriptor(block.address(at_k), 16, kEight),
                                     state->scores, k > 0);
    }
    block.commit_products();
  }

  /// Begins out += probs values.
  template <class Block>
  REGARD_DEVICE_FN void begin_values(const Block& block, State* state) {
    constexpr int kEight = 8 * cuda::kBoxRowBytes, kBox = kKeys * cuda::kBoxRowBytes;
    const int values = at_part(1, state->values.stage);
    block.begin_products(state->out[0]);
    REGARD_DEVICE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      const int at = values + k * 2 * kEight;
      block.template multiply_rows<kType>(state->probs.at[k],
                                          cuda::operand_descriptor(block.address(at), kBox, kEight),
                                          state->out[0]);
    }
    block.commit_products();
  }

  template <class Block>
  REGARD_DEVICE_FN void release_keys(const Block& block, State* state) {
    release(block, S::empty(0, state->keys.stage));
    advance(&state->keys);
  }
  template <class Block>
  REGARD_DEVICE_FN void release_values(const Block& block, State* state) {
    release(block, S::empty(1, state->values.stage));
    advance(&state->values);
  }

  /// Scores of a tile become probabilities; `rescale` is what sums so far are multiplied by.
  template <class Block>
  REGARD_DEVICE_FN void soften(const Block& block, const Args& args, const Tiles& tiles, int tile,
                               State* state, float (&rescale)[kLaneRows]) {
    if (tile < tiles.full_begin || tile >= tiles.full_end) hide(block, tile * kKeys, state);
    exponentiate<kType, false>(block, args.factor, state->softmax.max[0], state->softmax.sum[0],
                               &state->scores, rescale);
  }

  template <class Block>
  REGARD_DEVICE_FN void hide(const Block& block, int first, State* state) {
    const int column = first + cuda::lane_column(block);
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) {
        const int key = column + n * 8 + x % 2;
        const bool visible = key >= state->lo[x / 2] && key < state->hi[x / 2];
        if (!visible) state->scores.at[n][x] = cuda::minus_infinity<float>();
      }
    }
  }

  REGARD_DEVICE_FN void rescale_sums(const float (&rescale)[kLaneRows], State* state) {
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kDims / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) state->out[0].at[n][x] *= rescale[x / 2];
    }
  }

  template <class Block>
  REGARD_DEVICE_FN void add_tile(const Block& block, const Args& args, const Tiles& tiles,
                                 int group, int tile, State* state) {
    float rescale[kLaneRows];
    block.wait(S::full(0, state->keys.stage), state->keys.parity);
    begin_scores(block, group, state);
    block.template wait_products<0>(state->scores);
    release_keys(block, state);
    soften(block, args, tiles, tile, state, rescale);
    rescale_sums(rescale, state);
    state->probs = cuda::as_operand<kType>(state->scores, 1.0f);
    add_values(block, state);
  }

  template <class Block>
  REGARD_DEVICE_FN void add_values(const Block& block, State* state) {
    block.wait(S::full(1, state->values.stage), state->values.parity);
    begin_values(block, state);
    block.template wait_products<0>(state->out[0]);
    release_values(block, state);
  }

  /// All tiles: while a tile's values are multiplied, the next tile's scores become probabilities.
  template <class Block>
  REGARD_DEVICE_FN void add_overlapped(const Block& block, const Args& args, const Tiles& tiles,
                                       int group, State* state) {
    float rescale[kLaneRows];
    block.wait(S::full(0, state->keys.stage), state->keys.parity);
    begin_scores(block, group, state);
    block.template wait_products<0>(state->scores);
    release_keys(block, state);
    soften(block, args, tiles, 0, state, rescale);
    state->probs = cuda::as_operand<kType>(state->scores, 1.0f);
    REGARD_DEVICE_NO_UNROLL
    for (int tile = 1; tile < tiles.count; ++tile) {
      block.wait(S::full(0, state->keys.stage), state->keys.parity);
      if (S::kTurns) block.sync_part(kTurn + group, kTurnThreads);
      begin_scores(block, group, state);
      block.wait(S::full(1, state->values.stage), state->values.parity);
      begin_values(block, state);
      if (S::kTurns) block.arrive_part(kTurn + 1 - group, kTurnThreads);
      block.template wait_products<1>(state->scores);
      release_keys(block, state);
      soften(block, args, tiles, tile, state, rescale);
      block.template wait_products<0>(state->out[0]);
      release_values(block, state);
      rescale_sums(rescale, state);
      state->probs = cuda::as_operand<kType>(state->scores, 1.0f);
    }
    add_values(block, state);
  }

  template <class Block>
  REGARD_DEVICE_FN void finish(const Block& block, const Args& args, const Walk& walk, int group,
                               const State& state) {
    const Problem& p = args.forward.problem;
    const int first = warp_row(block, group);
    float share[kLaneRows];
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const float sum = cuda::sum_of_lanes(block, state.softmax.sum[0][i]) / kWeight<kType>;
      share[i] = cuda::inverse_sum(p, sum) / kWeight<kType>;
      const int row = first + block.thread() % kWarp / 4 + i * 8;
      if (cuda::lane_column(block) != 0 || row >= walk.rows.count) continue;
      const double max = static_cast<double>(state.softmax.max[0][i]) * p.score_unit;
      problem::write_row_stats(p, walk.rows.b, walk.rows.first_head, walk.rows.begin + row, max,
                               sum);
    }
    if (any_lane(block, has_non_finite(state.out))) {
      REGARD_DEVICE_NO_UNROLL
      for (int r = first; r < first + kWarpRows; ++r) {
        if (r >= walk.rows.count) break;
        const std::int64_t query = walk.rows.begin + r;
        recompute_row<kType, kDims>(block, p, args.factor,
                                    {walk.rows.b, walk.rows.first_head, query}, keys_of(walk, r));
      }
      return;
    }
    const cuda::QueryRows to = cuda::query_rows(p.out, walk.rows, p.head_dim_v);
    cuda::write_sums<kType>(block, to, first + block.thread() % kWarp / 4, state.out[0], share);
  }
};

}  // namespace regard::cuda_flash

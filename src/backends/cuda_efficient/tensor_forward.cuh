#pragma once

#include <cstdint>

#include "backends/cuda_efficient/args.h"
#include "cuda/lane_scores.cuh"
#include "cuda/split.cuh"

// EFFICIENT's forward of bf16 and f16 on tensor cores: a block has 128 rows of all heads that read
// one kv head, 16 to a warp, whose queries, scores and outputs stay in registers. While a tile's
// scores are computed its values come, and during the product with them the next tile's keys.
// Probabilities are rounded to the inputs' type before they are multiplied with values. Where those
// are not all finite, a tile is multiplied without tensor cores.

namespace regard::cuda_efficient {

using cuda::kLaneRows;
using cuda::kTensorRows;
using cuda::kTile;
using cuda::WarpSums;
using problem::Element;
using problem::Problem;
using problem::Sequence;

struct TensorArgs {
  ForwardArgs forward{};
  bool q_in_pairs = false;  // q's addresses are multiples of 4 bytes, and so are its rows
  bool k_in_chunks = false, v_in_chunks = false;  // of 16 bytes
};

/// Whether rows of `columns` elements of 16 bits begin and end at multiples of `elements`.
inline bool is_in_steps(const problem::View& view, std::int64_t columns, std::int64_t elements) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  bool all = columns % elements == 0 && address % static_cast<std::uintptr_t>(2 * elements) == 0;
  for (int axis = 0; axis < 3; ++axis) all = all && view.stride[axis] % elements == 0;
  return all;
}

inline TensorArgs tensor_args(const ForwardArgs& args) {
  const Problem& p = args.problem;
  return {args, is_in_steps(p.q, p.head_dim_qk, 2), is_in_steps(p.k, p.head_dim_qk, cuda::kChunk),
          is_in_steps(p.v, p.head_dim_v, cuda::kChunk)};
}

/// The online softmax of a lane's rows. `sum` is the lane's own part of it.
struct LaneSoftmax {
  float max[kLaneRows];
  float sum[kLaneRows];
};

template <class Block, class Facts>
REGARD_DEVICE_FN void start_softmax(const Block& block, Facts facts, bool has_sinks,
                                    LaneSoftmax* state) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const cuda::RowFacts<float> row = facts[cuda::lane_row(block) + i * 8];
    state->max[i] = has_sinks ? row.sink : cuda::minus_infinity<float>();
    const bool has_sink = state->max[i] != cuda::minus_infinity<float>();
    state->sum[i] = cuda::lane_column(block) == 0 && has_sink ? 1.0f : 0.0f;
  }
}

/// Scores become 2^((score - maximum) * factor), hidden ones the hidden value; what was summed so
/// far shrinks by carry, exactly 1 where the maximum stands.
template <class Block>
REGARD_DEVICE_FN void add_to_softmax(const Block& block, float factor, LaneSoftmax* state,
                                     WarpSums<kTile>* scores, float (&rescale)[kLaneRows]) {
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    float row_max = cuda::minus_infinity<float>();  // NaN is passed over here and reaches the sum
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < 2 * (kTile / 8); ++n) {
      const float score = scores->at[n / 2][2 * i + n % 2];
      row_max = score > row_max ? score : row_max;
    }
    row_max = cuda::max_of_lanes(block, row_max);
    const float before = state->max[i];
    const bool rises = row_max > before;
    if (rises) state->max[i] = row_max;
    const float max = cuda::subtrahend(state->max[i]);
    rescale[i] = rises ? cuda::exp2_of((before - max) * factor) : 1.0f;
    float sum = 0.0f;
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < 2 * (kTile / 8); ++n) {
      float& score = scores->at[n / 2][2 * i + n % 2];
      const bool hidden = score == cuda::minus_infinity<float>();
      score = hidden ? cuda::hidden_value<float>() : cuda::exp2_flushed((score - max) * factor);
      sum += score;
    }
    state->sum[i] = state->sum[i] * rescale[i] + sum;
  }
}

/// The weight of a probability of 1 in the product with values: the smallest one of f16 is then
/// 2^-39, not 2^-24.
template <Element kType>
inline constexpr float kWeight = kType == Element::kF16 ? 32768.0f : 1.0f;

/// Head dims to a step of head_dim_qk and to a block's range of head_dim_v: kDims. Longer rows of
/// queries are read again for each step of each tile, and ranges compute their scores again.
/// Without kEdits for plain problems alone; with kSplit a block has all rows, cuda::kSplitRows at
/// most, and a part of the keys.
template <Element kType, int kDims, bool kEdits, bool kSplit>
struct TensorForwardKernel {
  using Args = TensorArgs;
  static constexpr int kMinSm = 80;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = kEdits || kDims > kNarrow ? 1 : 2;
  static constexpr int kPitch = cuda::kTensorPitch<kDims>;
  static constexpr int kTileBytes = kTile * kPitch * static_cast<int>(sizeof(std::uint16_t));
  static constexpr int kAtPlaces = kTensorRows * static_cast<int>(sizeof(cuda::RowFacts<float>));
  static constexpr int kAtWalk = kAtPlaces + kTensorRows * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kWalkBytes = 128;
  static constexpr int kAtKeys = kAtWalk + kWalkBytes;
  static constexpr int kAtValues = kAtKeys + kTileBytes;
  static constexpr int kSharedBytes = kAtValues + kTileBytes;
  static_assert(kAtKeys % 16 == 0 && kAtValues % 16 == 0);

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    const std::int64_t ranges = (p.head_dim_v + kDims - 1) / kDims;
    return {kSplit ? semantics::split_count(p.seqlen_kv) : cuda::count_row_blocks<kTensorRows>(p),
            ranges};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.forward.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  /// What a task's tiles have in common. In shared memory: in registers it was spilled.
  struct Walk {
    cuda::HeadTask task;
    cuda::Reach reach;
    semantics::TileSpan tiles;
    std::int64_t len_kv;  // of the keys
    char *keys, *values;  // the first
    float descale;        // of scores that are edited
    float scale;          // of scores that are not
  };

  static_assert(sizeof(Walk) <= kWalkBytes);

  template <class Facts, class Rows, class Shared, class SharedWalk>
  struct Pass {
    const Args& args;
    Facts facts;
    Rows q;
    Shared keys, values;
    SharedWalk walk;

    /// The first tile from `index` on that any row sees.
    REGARD_DEVICE_FN std::int64_t seen(const Pass& pass, std::int64_t index) {
      const Walk walk = pass.walk[0];
      while (index < walk.tiles.end &&
             cuda::classify(walk.reach, semantics::tile_at(index, kTile, walk.len_kv)) ==
                 semantics::TileClass::kEmpty) {
        ++index;
      }
      return index;
    }
  };

  REGARD_DEVICE_FN Walk make_walk(const Problem& p, const cuda::HeadTask& task, const Sequence& s,
                                  const cuda::RowBlock& rows) {
    Walk walk{};
    walk.task = task;
    walk.reach = cuda::reach_of(p, rows, s);
    walk.tiles = semantics::tiles_of(cuda::keys_of_block<kSplit>(walk.reach, s, task), kTile);
    walk.len_kv = s.band.len_kv;
    walk.keys = problem::row_address(p.k, task.b, task.head_kv, 0);
    walk.values = problem::row_address(p.v, task.b, task.head_kv, 0);
    const double descale = problem::score_descale(p, task.b, task.head_kv);
    // The scale that is not in the softmax's factor.
    const double rest = p.prescale_scores ? p.softmax_scale : p.softmax_scale < 0.0 ? -1.0 : 1.0;
    walk.descale = static_cast<float>(descale);
    walk.scale = static_cast<float>(descale * rest);
    return walk;
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const Problem& p = args.forward.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    if (kSplit && task.block >= semantics::split_count(s.band.len_kv)) return;
    const cuda::RowBlock rows = rows_of(p, task);
    const auto facts = block.template shared<cuda::RowFacts<float>>(0, kTensorRows);
    const auto places = block.template shared<std::int64_t>(kAtPlaces, kTensorRows);
    const auto walk = block.template shared<Walk>(kAtWalk, 1);
    cuda::write_row_facts<float, kTensorRows>(block, p, s, rows, facts, places);
    if (block.thread() == 0) walk[0] = make_walk(p, task, s, rows);
    block.sync();

    const auto q = cuda::listed_rows(p.q, places, p.head_dim_qk);
    const auto keys = block.template shared<std::uint16_t>(kAtKeys, kTile * kPitch);
    const auto values = block.template shared<std::uint16_t>(kAtValues, kTile * kPitch);
    using ThisPass = Pass<decltype(facts), decltype(q), decltype(keys), decltype(walk)>;
    const ThisPass pass{args, facts, q, keys, values, walk};
    LaneSoftmax state;
    start_softmax(block, facts, !kSplit || task.block == 0, &state);
    WarpSums<kDims> out;
    cuda::clear(&out);
    cuda::WarpRows<kDims> queries;
    cuda::load_rows(block, q, 0, args.q_in_pairs, &queries);
    const Walk all = walk[0];
    std::int64_t index = ThisPass::seen(pass, all.tiles.begin);
    if (index < all.tiles.end) begin_keys(block, pass, index, 0);
    while (index < all.tiles.end) index = add_tile(block, pass, index, &queries, &state, &out);
    if constexpr (kSplit) {
      if (semantics::split_count(s.band.len_kv) > 1) return write_split(block, pass, state, out);
    }
    finish(block, p, pass, state, out);
  }

  REGARD_DEVICE_FN cuda::RowBlock rows_of(const Problem& p, const cuda::HeadTask& task) {
    return cuda::group_rows<kTensorRows>(p, {task.b, p.seqlen_q}, task.head_kv,
                                         kSplit ? 0 : task.block);
  }

  /// Whether the warp has rows: few rows are those of the first warps.
  template <class Block>
  REGARD_DEVICE_FN bool has_rows(const Block& block, const Problem& p) {
    return !kSplit || block.thread() / cuda::kWarp * cuda::kWarpRows < p.seqlen_q * p.group_size;
  }

  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void begin_keys(const Block& block, const ThisPass& pass, std::int64_t index,
                                   std::int64_t dim) {
    const Problem& p = pass.args.forward.problem;
    const Walk walk = pass.walk[0];
    const semantics::Tile tile = semantics::tile_at(index, kTile, walk.len_kv);
    const auto rows = cuda::rows_from(p.k, walk.keys, tile, p.head_dim_qk);
    cuda::begin_tile<kTile, kDims>(block, rows, dim, pass.args.k_in_chunks, pass.keys);
  }

  /// Adds tile `index`, whose first step of keys was begun, and begins that of the next tile; its
  /// index.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN std::int64_t add_tile(const Block& block, const ThisPass& pass,
                                         std::int64_t index, cuda::WarpRows<kDims>* queries,
                                         LaneSoftmax* state, WarpSums<kDims>* out) {
    const Problem& p = pass.args.forward.problem;
    const Walk walk = pass.walk[0];
    const semantics::Tile tile = semantics::tile_at(index, kTile, walk.len_kv);
    const bool is_full = cuda::classify(walk.reach, tile) == semantics::TileClass::kFull;
    const std::int64_t column = walk.task.columns * kDims;
    block.wait_copies();
    block.sync();  // the keys are there, and no thread reads the last tile's values
    const auto value_rows = cuda::rows_from(p.v, walk.values, tile, p.head_dim_v);
    cuda::begin_tile<kTile, kDims>(block, value_rows, column, pass.args.v_in_chunks, pass.values);

    WarpSums<kTile> scores;
    add_scores(block, pass, index, queries, &scores);
    float rescale[kLaneRows];
    if (has_rows(block, p)) {
      const int row = cuda::lane_row(block);
      const bool edits = kEdits && !cuda::needs_scale_alone(p, is_full);
      cuda::scale_by(edits ? walk.descale : walk.scale, &scores);
      if (edits) {
        cuda::edit_lane_scores(block, p, walk.task.b, pass.facts, row, tile.begin, is_full,
                               &scores);
      } else if (!is_full) {
        cuda::hide_by_arithmetic(block, pass.facts, row, tile.begin, &scores);
      }
      add_to_softmax(block, static_cast<float>(p.exp2_scale), state, &scores, rescale);
      if constexpr (kEdits) {
        cuda::drop_lane_tile(block, p, pass.facts, row, tile.begin, &scores);
      }
    }
    block.wait_copies();
    // 0 times what stands there may not be 0.
    bool is_unsafe = cuda::has_non_finite<kType, kTile, kDims>(block, pass.values);
    is_unsafe = block.sync_or(is_unsafe);  // the values are there, and no thread reads the keys
    const std::int64_t next = ThisPass::seen(pass, index + 1);
    if (next < walk.tiles.end) begin_keys(block, pass, next, 0);
    if (!has_rows(block, p)) return next;
    if (is_unsafe) {
      rescale_sums(rescale, out);
      cuda::add_visible_terms<kType, cuda::Pitched>(block, scores, pass.values, kWeight<kType>,
                                                    out);
    } else {
      const cuda::WarpRows<kTile> probs = cuda::as_operand<kType>(scores, kWeight<kType>);
      cuda::rescale_add_tile_product<kType>(block, probs, pass.values, p.head_dim_v - column,
                                            rescale, out);
    }
    return next;
  }

  REGARD_DEVICE_FN void rescale_sums(const float (&rescale)[kLaneRows], WarpSums<kDims>* out) {
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kDims / 8; ++n) {
      REGARD_DEVICE_UNROLL
      for (int x = 0; x < 4; ++x) out->at[n][x] *= rescale[x / 2];
    }
  }

  /// q k^T of a tile, a step of head dims after another.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void add_scores(const Block& block, const ThisPass& pass, std::int64_t index,
                                   cuda::WarpRows<kDims>* queries, WarpSums<kTile>* scores) {
    const Problem& p = pass.args.forward.problem;
    cuda::clear(scores);
    for (std::int64_t dim = 0; dim < p.head_dim_qk; dim += kDims) {
      if (dim > 0) {
        block.sync();  // no thread reads the last step's keys
        begin_keys(block, pass, index, dim);
      }
      if (p.head_dim_qk > kDims) {
        cuda::load_rows(block, pass.q, dim, pass.args.q_in_pairs, queries);
      }
      if (dim > 0) {
        block.wait_copies();
        block.sync();
      }
      if (!has_rows(block, p)) continue;
      cuda::add_row_products<kType>(block, *queries, pass.keys, p.head_dim_qk - dim, scores);
    }
  }

  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void write_split(const Block& block, const ThisPass& pass,
                                    const LaneSoftmax& state, const WarpSums<kDims>& out) {
    const ForwardArgs& args = pass.args.forward;
    const Walk walk = pass.walk[0];
    const cuda::HeadTask task = walk.task;
    const cuda::DenseRows to = cuda::rows_of_split(args, task);
    float one[kLaneRows];
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      one[i] = 1.0f;
      const float sum = cuda::sum_of_lanes(block, state.sum[i]);
      const int row = cuda::lane_row(block) + i * 8;
      if (cuda::lane_column(block) != 0 || task.columns != 0 || row >= to.count) continue;
      cuda::leave_stats(args, task, row, state.max[i], sum);
    }
    cuda::write_sums<kType>(block, to, cuda::lane_row(block), task.columns * kDims, out, one);
  }

  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void finish(const Block& block, const Problem& p, const ThisPass& pass,
                               const LaneSoftmax& state, const WarpSums<kDims>& out) {
    const Walk walk = pass.walk[0];
    const cuda::HeadTask task = walk.task;
    const auto descale = static_cast<float>(problem::descale_of(p.descale_v, task.b, task.head_kv));
    float share[kLaneRows];
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const float sum = cuda::sum_of_lanes(block, state.sum[i]);
      share[i] = cuda::inverse_sum(p, sum) * (descale / kWeight<kType>);
      const cuda::RowFacts<float> row = pass.facts[cuda::lane_row(block) + i * 8];
      if (cuda::lane_column(block) != 0 || task.columns != 0 || !row.exists) continue;
      const double max = static_cast<double>(state.max[i]) * p.score_unit;
      problem::write_row_stats(p, task.b, row.head, row.query, max, sum);
    }
    const cuda::RowBlock rows = rows_of(p, task);
    const cuda::QueryRows to = cuda::query_rows(p.out, rows, p.head_dim_v);
    cuda::write_sums<kType>(block, to, cuda::lane_row(block), task.columns * kDims, out, share);
  }
};

}  // namespace regard::cuda_efficient

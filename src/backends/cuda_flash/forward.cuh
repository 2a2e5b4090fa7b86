#pragma once

#include <cstdint>

#include "backends/cuda_flash/tile.cuh"
#include "backends/cuda_flash/walk.cuh"

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
  using W = TileWalk<L>;
  using Walk = typename W::Walk;
  static constexpr bool kSplit = S::kSplit;
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
    W::for_each_task(block, cuda::count_tasks(p, grid(p)),
                     [&](std::int64_t task) { run_task(block, args, task); });
  }

  template <class RowBounds, class Shared, class SharedWalk>
  struct Pass {
    const Args& args;
    RowBounds bounds;
    Shared queries;
    SharedWalk walk;
  };

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, std::int64_t number) {
    const Problem& p = args.forward.problem;
    const cuda::HeadTask task = cuda::head_task(p, grid(p), number);
    const Sequence s = problem::sequence_of(p, task.b);
    const cuda::RowBlock rows = W::rows_of(p, task, s.rows_q);
    const auto walk = W::of(block);
    const auto bounds = block.template shared<typename L::Row>(L::kAtBounds, S::kRows);
    const auto places = block.template shared<std::int64_t>(L::kAtPlaces, S::kRows);
    const auto queries = block.template shared<std::uint16_t>(L::kAtQueries, S::kRows * kDims);
    for (int r = block.thread(); r < S::kRows; r += kThreads) {
      const auto facts = cuda::row_facts<float>(p, s, rows, r);
      bounds[r] = Bounds<S::kEdits>::of(facts);
      places[r] = cuda::place_in(p.q, s.b, facts);
    }
    if constexpr (S::kCodes) {
      begin_channels(block, p, task.head_kv, block.template shared<float>(L::kAtChannels, kDims));
    }
    if (block.thread() == 0) walk[0] = W::make(p, number, task, s, args.forward.kv_entries);
    block.sync();
    if (rows.count == 0) return;
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
    finish(block, p, all, state, out);
  }

  /// The scales of a head's columns, 0 behind the last; none where K has none.
  template <class Block, class Shared>
  REGARD_DEVICE_FN void begin_channels(const Block& block, const Problem& p, std::int64_t head_kv,
                                       Shared to) {
    const problem::View& scales = p.channel_scales_k;
    if (!scales.present) return;
    for (int d = block.thread(); d < kDims; d += kThreads) {
      const std::int64_t at = head_kv * scales.stride[0] + d * scales.stride[1];
      to[d] = d < p.head_dim_qk ? *problem::element_at<float>(scales, at) : 0.0f;
    }
  }

  /// All tiles: `out` becomes sums of probabilities and values. kSafe: values may be infinities or
  /// NaN.
  template <bool kSafe, class Block, class ThisPass>
  REGARD_DEVICE_FN void run_tiles(const Block& block, const ThisPass& pass, bool has_sinks,
                                  Softmax<kRowBlocks>* state, Outputs& out) {
    start(block, pass, has_sinks, state, out);
    W::template for_each_tile<!kSafe && !S::kEdits>(
        block, pass.args.forward.problem, [&](auto masked, int tile, int stage, bool is_full) {
          add_tile<decltype(masked)::kIs, kSafe>(block, pass, tile, stage, is_full, state, out);
        });
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
          const cuda::RowFacts<float> row = pass.bounds[W::lane_row(block, m) + i * 8];
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
    if constexpr (S::kCodes) W::template widen<kType>(block, pass.args.forward.problem, stage);
    WarpSums<kKeys> scores[kRowBlocks];
    if constexpr (S::kCodes) {
      multiply_codes(block, pass, stage, &scores[0]);
    } else {
      const auto keys = W::stage_part(block, stage, 0);
      cuda::multiply_rows<kType, kDims>(block, pass.queries, W::warp_row(block), keys, scores);
    }
    const Walk walk = pass.walk[0];
    const std::int64_t first = walk.first + static_cast<std::int64_t>(tile) * kKeys;
    float rescale[kRowBlocks][kLaneRows];
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      if constexpr (S::kEdits) {
        const int row = W::lane_row(block, m);
        edit(block, pass, walk.task.b, row, first, is_full, &scores[m]);
        const Problem& p = pass.args.forward.problem;
        if (p.tree.present && !is_full) {
          const cuda::TreeColumns tree{walk.task.b, walk.tree_begin};
          cuda::hide_by_tree(block, p, tree, pass.bounds, row, first, &scores[m]);
        }
      } else if constexpr (kMasked) {
        cuda::hide_by_arithmetic(block, pass.bounds, W::lane_row(block, m), first, &scores[m]);
      }
      exponentiate<kType, kSafe>(block, pass.args.factor, state->max[m], state->sum[m], &scores[m],
                                 rescale[m]);
      if constexpr (S::kEdits) {
        cuda::drop_lane_tile(block, pass.args.forward.problem, pass.bounds, W::lane_row(block, m),
                             first, &scores[m]);
      }
    }
    add_values<kSafe>(block, stage, rescale, scores, out);
  }

  /// Scores of the stage's keys, which are codes.
  template <class Block, class ThisPass>
  REGARD_DEVICE_FN void multiply_codes(const Block& block, const ThisPass& pass, int stage,
                                       WarpSums<kKeys>* scores) {
    const auto keys = W::stage_part(block, stage, 0);
    const auto scales = W::scales(block, stage, 0);
    const auto multiply = [&](const auto& queries) {
      if constexpr (S::kGroups) {
        multiply_groups<kDims>(block, queries, keys, scales, scores);
      } else {
        multiply_queries<kDims>(block, queries, keys, scores);
      }
    };
    const int at = cuda::left_at<kDims>(block, W::warp_row(block));
    using Queries = decltype(pass.queries);
    if (pass.args.forward.problem.channel_scales_k.present) {
      const auto channels = block.template shared<float>(L::kAtChannels, kDims);
      multiply(
          ScaledQueries<kType, kDims, Queries, decltype(channels)>{pass.queries, at, channels});
    } else {
      multiply(PlainQueries<kType, kDims, Queries>{pass.queries, at});
    }
    if constexpr (!S::kGroups) scale_scores(block, scales, scores);
  }

  /// out = out * rescale + probabilities, which `scores` are now, times the stage's values.
  template <bool kSafe, class Block>
  REGARD_DEVICE_FN void add_values(const Block& block, int stage,
                                   const float (&rescale)[kRowBlocks][kLaneRows],
                                   WarpSums<kKeys> (&scores)[kRowBlocks], Outputs& out) {
    const auto values = W::stage_part(block, stage, 1);
    float unit = 1.0f;  // of products
    if constexpr (S::kCodes && !S::kGroups) {
      unit = scale_probs<kType, kSafe>(block, W::scales(block, stage, 1), &scores[0]);
    }
    if constexpr (kSafe) {
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        rescale_sums(rescale[m], &out[m]);
        add_visible_values(block, stage, scores[m], &out[m]);
      }
    } else if constexpr (S::kGroups) {
      rescale_add_groups<kType>(block, scores[0], values, W::scales(block, stage, 1), rescale[0],
                                &out[0]);
    } else {
      cuda::WarpRows<kKeys> probs[kRowBlocks];
      REGARD_DEVICE_UNROLL
      for (int m = 0; m < kRowBlocks; ++m) {
        probs[m] = cuda::as_operand<kType>(scores[m], 1.0f);
      }
      cuda::rescale_add_product<kType>(block, probs, values, rescale, unit, out);
    }
  }

  template <class Block>
  REGARD_DEVICE_FN void add_visible_values(const Block& block, int stage,
                                           const WarpSums<kKeys>& probs, WarpSums<kDims>* out) {
    const auto values = W::stage_part(block, stage, 1);
    if constexpr (S::kGroups) {
      const auto scales = W::scales(block, stage, 1);
      const GroupNumbers<kKeys, decltype(scales)> numbers{scales};
      cuda::add_visible_terms<kType>(block, probs, values, out, numbers);
    } else {
      cuda::add_visible_terms<kType>(block, probs, values, out);
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
    const int row = W::lane_row(block, 0);
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const float sum = cuda::sum_of_lanes(block, state.sum[0][i]) / kWeight<kType>;
      if (cuda::lane_column(block) != 0 || row + i * 8 >= to.count) continue;
      cuda::leave_stats(args, task, row + i * 8, state.max[0][i], sum);
    }
    cuda::write_sums<kType>(block, to, row, out[0], {1.0f, 1.0f});
  }

  template <class Block>
  REGARD_DEVICE_FN void finish(const Block& block, const Problem& p, const Walk& walk,
                               const Softmax<kRowBlocks>& state, const Outputs& out) {
    const cuda::RowBlock rows = W::rows_of(p, walk.task, walk.rows_q);
    const cuda::QueryRows to = cuda::query_rows(p.out, rows, p.head_dim_v);
    REGARD_DEVICE_UNROLL
    for (int m = 0; m < kRowBlocks; ++m) {
      float share[kLaneRows];
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const float sum = cuda::sum_of_lanes(block, state.sum[m][i]) / kWeight<kType>;
        share[i] = cuda::inverse_sum(p, sum) / kWeight<kType>;
        const std::int64_t row = W::lane_row(block, m) + i * 8;
        if (cuda::lane_column(block) != 0 || row >= rows.count) continue;
        const std::int64_t query = cuda::RowBlock::query(rows, rows.begin + row);
        const std::int64_t head = rows.first_head + (rows.begin + row - query * rows.heads);
        const double max = static_cast<double>(state.max[m][i]) * p.score_unit;
        problem::write_row_stats(p, rows.b, head, query, max, sum);
      }
      cuda::write_sums<kType>(block, to, W::lane_row(block, m), out[m], share);
    }
  }
};

}  // namespace regard::cuda_flash

#pragma once

#include <cstdint>

#include "backends/cuda_efficient/args.h"
#include "cuda/scaled_rows.cuh"
#include "cuda/split.cuh"

// EFFICIENT's forward: a block has 64 rows of all heads that read one kv head, and passes over the
// tiles of keys that any of them sees, with an online softmax; scores never leave the block.

namespace regard::cuda_efficient {

using cuda::kOwn;
using cuda::kPitch;
using cuda::kTile;
using problem::Problem;
using problem::Sequence;

/// The online softmax of a thread's rows. `sum` is the thread's own part of it.
struct Softmax {
  float max[kOwn];
  float sum[kOwn];
};

/// A sink is a first key without a value; one thread of a row has it in its sum.
template <class Block, class Facts>
REGARD_DEVICE_FN void start_softmax(const Block& block, Facts facts, bool has_sinks,
                                    Softmax* state) {
  const cuda::Place at = cuda::place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const cuda::RowFacts<float> row = facts[at.row + i];
    state->max[i] = has_sinks ? row.sink : cuda::minus_infinity<float>();
    const bool has_sink = state->max[i] != cuda::minus_infinity<float>();
    state->sum[i] = at.column == 0 && has_sink ? 1.0f : 0.0f;
  }
}

/// Scores become 2^((score - maximum) * factor), hidden ones the hidden value; rescale is what
/// everything summed so far is multiplied by, exactly 1 where the maximum stands.
template <class Block>
REGARD_DEVICE_FN void add_to_softmax(const Block& block, const Problem& p, Softmax* state,
                                     float (&scores)[kOwn][kOwn], float (&rescale)[kOwn]) {
  const auto factor = static_cast<float>(p.exp2_scale);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    float row_max = cuda::minus_infinity<float>();  // NaN is passed over here and reaches the sum
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) row_max = scores[i][c] > row_max ? scores[i][c] : row_max;
    row_max = cuda::max_of_row(block, row_max);
    const float before = state->max[i];
    const bool rises = row_max > before;
    if (rises) state->max[i] = row_max;
    const float max = cuda::subtrahend(state->max[i]);
    rescale[i] = rises ? cuda::exp2_of((before - max) * factor) : 1.0f;
    float sum = 0.0f;
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const float score = scores[i][c];
      const bool hidden = score == cuda::minus_infinity<float>();
      const float prob =
          hidden ? cuda::hidden_value<float>() : cuda::exp2_of((score - max) * factor);
      scores[i][c] = prob;
      sum += prob;
    }
    state->sum[i] = state->sum[i] * rescale[i] + sum;
  }
}

/// A thread's probabilities to shared memory, [key][row].
template <class Block, class Shared>
REGARD_DEVICE_FN void write_by_keys(const Block& block, const float (&probs)[kOwn][kOwn],
                                    Shared to) {
  const cuda::Place at = cuda::place_of(block);
  REGARD_DEVICE_UNROLL
  for (int c = 0; c < kOwn; ++c) {
    const cuda::Vec4<float> rows{{probs[0][c], probs[1][c], probs[2][c], probs[3][c]}};
    store4(to, (at.column + c) * kPitch + at.row, rows);
  }
}

/// kColumns of head_dim_v to a block; with kSplit all rows, kSplitRows at most, and a part of the
/// keys; with kCached keys lie in pages, in an entry of a cache, or behind rows that are none, or
/// have scales.
template <int kColumns, bool kSplit, bool kCached>
struct ForwardKernel {
  using Args = ForwardArgs;
  static constexpr int kSums = kColumns / cuda::kSide;  // columns of a thread
  using Space = cuda::Staging<float, kSums>;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kAtPlaces = kTile * static_cast<int>(sizeof(cuda::RowFacts<float>));
  static constexpr int kAtA = kAtPlaces + kTile * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kAtB = kAtA + Space::kBytesA;
  static constexpr int kAtProbs = kAtB + Space::kBytesB;
  static constexpr int kSharedBytes = kAtProbs + kTile * kPitch * static_cast<int>(sizeof(float));

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    const std::int64_t ranges = (p.head_dim_v + kColumns - 1) / kColumns;
    return {kSplit ? semantics::split_count(p.seqlen_kv) : cuda::count_row_blocks(p), ranges};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const Problem& p = args.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    if (kSplit && task.block >= semantics::split_count(s.band.len_kv)) return;
    const cuda::RowBlock rows =
        cuda::group_rows(p, cuda::queries_of(s), task.head_kv, kSplit ? 0 : task.block);
    const auto facts = block.template shared<cuda::RowFacts<float>>(0, kTile);
    const auto a = block.template shared<float>(kAtA, cuda::kDepth<float> * kPitch);
    const auto b = block.template shared<float>(kAtB, cuda::kDepth<float> * Space::kPitchB);
    const auto probs = block.template shared<float>(kAtProbs, kTile * kPitch);
    const auto places = block.template shared<std::int64_t>(kAtPlaces, kTile);
    cuda::write_row_facts<float>(block, p, s, rows, facts, places);
    block.sync();

    Softmax state;
    start_softmax(block, facts, !kSplit || task.block == 0, &state);
    float out[kOwn][kSums];
    cuda::clear(out);
    const auto q = cuda::listed_rows(p.q, places, p.head_dim_qk);
    const auto descale = static_cast<float>(problem::score_descale(p, task.b, task.head_kv));
    const cuda::Reach reach = cuda::reach_of(p, rows, s);
    const semantics::TileSpan tiles =
        semantics::tiles_of(cuda::keys_of_block<kSplit>(reach, s, task), kTile);
    for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
      const semantics::Tile tile = semantics::tile_at(index, kTile, s.band.len_kv);
      const semantics::TileClass seen = cuda::classify(reach, tile);
      if (seen == semantics::TileClass::kEmpty) continue;
      float scores[kOwn][kOwn];
      cuda::clear(scores);
      const auto keys =
          rows_of_tile(args, s, task, tile, {p.k, p.scales_k, p.channel_scales_k, p.head_dim_qk});
      cuda::add_row_products(block, q, keys, p.head_dim_qk, a, b, scores);
      cuda::scale_by(descale, scores);
      const bool is_full = seen == semantics::TileClass::kFull;
      cuda::edit_scores(block, p, task.b, facts, tile.begin, is_full, scores);
      cuda::hide_by_tree(block, p, cuda::tree_columns(p, s), facts, tile.begin, scores);
      float rescale[kOwn];
      add_to_softmax(block, p, &state, scores, rescale);
      cuda::drop_tile(block, p, facts, tile.begin, scores);
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        REGARD_DEVICE_UNROLL
        for (int c = 0; c < kSums; ++c) out[i][c] *= rescale[i];
      }
      write_by_keys(block, scores, probs);
      const auto values = rows_of_tile(args, s, task, tile, {p.v, p.scales_v, {}, p.head_dim_v});
      cuda::add_tile_product(block, probs, values, task.columns * kColumns, b, out);
    }
    if constexpr (kSplit) {
      if (semantics::split_count(s.band.len_kv) > 1) {
        return write_split(block, args, task, state, out);
      }
    }
    finish(block, p, rows, task, facts, state, out);
  }

  /// Of K or V.
  REGARD_DEVICE_FN auto rows_of_tile(const Args& args, const Sequence& s,
                                     const cuda::HeadTask& task, semantics::Tile tile,
                                     const cuda::CachedTensor& of) {
    return cuda::rows_of_tile<kCached>(args.problem, s, args.kv_entries, task.head_kv, tile, of);
  }

  template <class Block>
  REGARD_DEVICE_FN void write_split(const Block& block, const Args& args,
                                    const cuda::HeadTask& task, const Softmax& state,
                                    const float (&out)[kOwn][kSums]) {
    const cuda::Place at = cuda::place_of(block);
    const cuda::DenseRows to = cuda::rows_of_split(args, task);
    float one[kOwn];
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      one[i] = 1.0f;
      const float sum = cuda::sum_of_row(block, state.sum[i]);
      if (at.column != 0 || task.columns != 0 || at.row + i >= to.count) continue;
      cuda::leave_stats(args, task, at.row + i, state.max[i], sum);
    }
    cuda::write_sums(block, to, 0, task.columns * kColumns, out, one);
  }

  template <class Block, class Facts>
  REGARD_DEVICE_FN void finish(const Block& block, const Problem& p, const cuda::RowBlock& rows,
                               const cuda::HeadTask& task, Facts facts, const Softmax& state,
                               const float (&out)[kOwn][kSums]) {
    const cuda::Place at = cuda::place_of(block);
    const auto descale = static_cast<float>(problem::descale_of(p.descale_v, task.b, task.head_kv));
    float share[kOwn];
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const float sum = cuda::sum_of_row(block, state.sum[i]);
      share[i] = cuda::inverse_sum(p, sum) * descale;
      const cuda::RowFacts<float> row = facts[at.row + i];
      if (at.column != 0 || task.columns != 0 || !row.exists) continue;
      const double max = static_cast<double>(state.max[i]) * p.score_unit;
      problem::write_row_stats(p, task.b, row.head, row.query, max, sum);
    }
    const cuda::QueryRows to = cuda::query_rows(p.out, rows, p.head_dim_v);
    cuda::write_sums(block, to, 0, task.columns * kColumns, out, share);
  }
};

}  // namespace regard::cuda_efficient

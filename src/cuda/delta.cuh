#pragma once

#include <cstdint>

#include "cuda/backward_args.h"
#include "cuda/grad_tile.cuh"
#include "cuda/tasks.cuh"

// The first launch of a backward: delta, a number for each row.

namespace regard::cuda {

/// delta of 64 rows: the sum of d_out * out; of rows that see few keys, whose probabilities are
/// large, and whose outputs were rounded, that of probs * d_probs, where these are all their keys.
struct DeltaKernel {
  using Args = BackwardArgs;
  static constexpr std::int64_t kExactKeys = 64;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kSharedBytes = GradLayout<kOwn>::kBytes;

  REGARD_KERNEL_FN HeadGrid grid(const Problem& p) { return {count_row_blocks(p), 1}; }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    for_each_head_task(block, p, grid(p), [&](const HeadTask& task) {
      const Sequence s = problem::sequence_of(p, task.b);
      const RowBlock rows = group_rows(p, queries_of(s), task.head_kv, task.block);
      const semantics::KeyRange keys = Reach::keys(reach_of(p, rows, s));
      const bool is_exact =
          !args.grad.delta.present && has_rounded_outputs(p) && keys.hi - keys.lo <= kExactKeys;
      if (!is_exact || args.grad.saved_is_lse) from_outputs(block, args, s, rows);
      if (is_exact) from_probabilities(block, args, s, rows);
    });
  }

  /// A warp to a row.
  template <class Block>
  REGARD_DEVICE_FN void from_outputs(const Block& block, const Args& args, const Sequence& s,
                                     const RowBlock& rows) {
    const GradProblem& g = args.grad;
    const int lane = block.thread() % kWarp;
    for (std::int64_t r = block.thread() / kWarp; r < rows.count; r += kWarps) {
      const std::int64_t row = rows.begin + r, i = row / rows.heads;
      const std::int64_t h = rows.first_head + row % rows.heads;
      const bool live = i < s.len_q;
      float sum = 0.0f;
      if (live && !g.delta.present) sum = lane_delta<float>(g, s.b, h, i, lane);
      sum = sum_warp(block, sum);
      if (lane != 0) continue;
      args.delta[dense_row(g.problem, s.b, h, i)] =
          live ? sum + given_delta<float>(g, s.b, h, i) : 0.0f;
    }
  }

  /// Of rows of which these are not all keys the delta stays as it was. Begins with a barrier.
  template <class Block>
  REGARD_DEVICE_FN void from_probabilities(const Block& block, const Args& args, const Sequence& s,
                                           const RowBlock& rows) {
    const GradProblem& g = args.grad;
    const auto space = grad_space<kOwn>(block);
    load_grad_rows(block, g, s, rows, nullptr, space);
    float sums[kOwn] = {}, shares[kOwn] = {};
    const Reach reach = reach_of(g.problem, rows, s);
    const std::int64_t head_kv = semantics::kv_head(rows.first_head, g.problem.group_size);
    const semantics::TileSpan tiles = semantics::tiles_of(Reach::keys(reach), kTile);
    for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
      GradTile t;
      const semantics::Tile tile = semantics::tile_at(index, kTile, s.band.len_kv);
      const bool is_full = classify(reach, tile) == semantics::TileClass::kFull;
      compute_grad_tile(block, g, {s.b, head_kv, tile, is_full}, space, &t);
      REGARD_DEVICE_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        REGARD_DEVICE_UNROLL
        for (int c = 0; c < kOwn; ++c) {
          sums[i] += t.d_scores[i][c];
          shares[i] += t.probs[i][c];
        }
      }
    }
    const Place at = place_of(block);
    REGARD_DEVICE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      float sum = sum_of_row(block, sums[i]);
      const float share = sum_of_row(block, shares[i]);
      const RowFacts<float> row = space.facts[at.row + i];
      if (at.column != 0 || !row.exists) continue;
      const bool live = row.query < s.len_q;
      if (live && !problem::complete_delta(g, s.b, row.head, row.query, share, &sum)) continue;
      args.delta[dense_row(g.problem, s.b, row.head, row.query)] =
          live ? sum + given_delta<float>(g, s.b, row.head, row.query) : 0.0f;
    }
  }
};

}  // namespace regard::cuda

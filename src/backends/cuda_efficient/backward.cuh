#pragma once

#include <cstdint>

#include "backends/cuda_efficient/forward.cuh"
#include "cuda/delta.cuh"
#include "cuda/grad_tile.cuh"

// EFFICIENT's backward: one pass over rows gives d_q, one over tiles of keys d_k and d_v. Seven
// products where one pass would need five, but every sum has one owner: no atomics, no order that
// depends on the schedule. delta comes first, a number for each row.

namespace regard::cuda_efficient {

using cuda::by_keys;
using cuda::by_rows;
using cuda::compute_grad_tile;
using cuda::differentiate_softcap;
using cuda::drop_tile;
using cuda::grad_space;
using cuda::GradLayout;
using cuda::GradTile;
using cuda::load_grad_rows;
using problem::GradProblem;

/// d_q of 64 rows, kColumns of head_dim_qk to a block.
template <int kColumns>
struct QueriesKernel {
  using Args = BackwardArgs;
  static constexpr int kSums = kColumns / cuda::kSide;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kAtTile = GradLayout<kSums>::kBytes;
  static constexpr int kSharedBytes = kAtTile + kTile * kPitch * static_cast<int>(sizeof(float));

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    return {cuda::count_row_blocks(p), (p.head_dim_qk + kColumns - 1) / kColumns};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    const cuda::RowBlock rows = cuda::group_rows(p, cuda::queries_of(s), task.head_kv, task.block);
    const auto space = grad_space<kSums>(block);
    const auto d_scores = block.template shared<float>(kAtTile, kTile * kPitch);
    load_grad_rows(block, g, s, rows, args.delta, space);
    float d_q[kOwn][kSums];
    cuda::clear(d_q);
    const cuda::Place at = cuda::place_of(block);
    const cuda::Reach reach = cuda::reach_of(p, rows, s);
    const semantics::TileSpan tiles = semantics::tiles_of(cuda::Reach::keys(reach), kTile);
    for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
      const semantics::Tile tile = semantics::tile_at(index, kTile, s.band.len_kv);
      const semantics::TileClass seen = cuda::classify(reach, tile);
      if (seen == semantics::TileClass::kEmpty) continue;
      const bool is_full = seen == semantics::TileClass::kFull;
      const auto keep_capped = [&](int i, int c, float score) {
        if (p.caps_scores) d_scores[by_keys(at, i, c)] = score;
      };
      GradTile t;
      compute_grad_tile(block, g, {s.b, task.head_kv, tile, is_full}, space, keep_capped, &t);
      const auto capped = [&](int i, int c) -> float { return d_scores[by_keys(at, i, c)]; };
      differentiate_softcap(p, capped, &t);
      write_by_keys(block, t.d_scores, d_scores);
      const auto keys = cuda::key_rows(p.k, task.b, task.head_kv, tile, p.head_dim_qk);
      cuda::add_tile_product(block, d_scores, keys, task.columns * kColumns, space.b, d_q);
    }
    const float scale = p.softmax_scale_f32;
    const float scales[kOwn] = {scale, scale, scale, scale};
    const auto to = cuda::query_rows(g.d_q, rows, p.head_dim_qk);
    cuda::write_sums(block, to, 0, task.columns * kColumns, d_q, scales);
  }
};

/// A thread's elements to shared memory, [row][key].
template <class Block, class Shared>
REGARD_DEVICE_FN void write_by_rows(const Block& block, const float (&values)[kOwn][kOwn],
                                    Shared to) {
  const cuda::Place at = cuda::place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const cuda::Vec4<float> keys{{values[i][0], values[i][1], values[i][2], values[i][3]}};
    store4(to, (at.row + i) * kPitch + at.column, keys);
  }
}

/// d_k and d_v of a tile of keys, kColumns of either to a block, summed over the rows of all heads
/// that read them.
template <int kColumns>
struct KeysKernel {
  using Args = BackwardArgs;
  static constexpr int kSums = kColumns / cuda::kSide;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kAtTile = GradLayout<kSums>::kBytes;
  static constexpr int kSharedBytes = kAtTile + kTile * kPitch * static_cast<int>(sizeof(float));

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Problem& p) {
    const std::int64_t columns = p.head_dim_qk > p.head_dim_v ? p.head_dim_qk : p.head_dim_v;
    return {cuda::count_key_tiles(p), (columns + kColumns - 1) / kColumns};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.grad.problem;
    cuda::for_each_head_task(block, p, grid(p),
                             [&](const cuda::HeadTask& task) { run_task(block, args, task); });
  }

  template <class Block>
  REGARD_DEVICE_FN void run_task(const Block& block, const Args& args, const cuda::HeadTask& task) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const Sequence s = problem::sequence_of(p, task.b);
    const std::int64_t begin = task.block * kTile, column = task.columns * kColumns;
    const std::int64_t end = begin + kTile < s.band.len_kv ? begin + kTile : s.band.len_kv;
    const semantics::Tile tile{begin, end - begin};
    const bool wants_k = g.d_k.present && column < p.head_dim_qk;
    const bool wants_v = g.d_v.present && column < p.head_dim_v;
    const auto space = grad_space<kSums>(block);
    const auto shared_tile = block.template shared<float>(kAtTile, kTile * kPitch);
    float d_k[kOwn][kSums], d_v[kOwn][kSums];
    cuda::clear(d_k);
    cuda::clear(d_v);
    const cuda::Place at = cuda::place_of(block);
    const auto next = [&](std::int64_t index) {
      return cuda::next_row_block<kTile, kTile>(p, s, task.head_kv, tile, index);
    };
    const std::int64_t blocks = cuda::count_row_blocks(p);
    for (std::int64_t index = next(0); index < blocks; index = next(index + 1)) {
      const cuda::RowBlock rows = cuda::group_rows(p, cuda::queries_of(s), task.head_kv, index);
      const semantics::TileClass seen = cuda::classify(cuda::reach_of(p, rows, s), tile);
      const bool is_full = seen == semantics::TileClass::kFull;
      load_grad_rows(block, g, s, rows, args.delta, space);
      const auto keep_capped = [&](int i, int c, float score) {
        if (p.caps_scores) shared_tile[by_rows(at, i, c)] = score;
      };
      GradTile t;
      compute_grad_tile(block, g, {s.b, task.head_kv, tile, is_full}, space, keep_capped, &t);
      if (wants_k) {
        const auto capped = [&](int i, int c) -> float { return shared_tile[by_rows(at, i, c)]; };
        differentiate_softcap(p, capped, &t);
        write_by_rows(block, t.d_scores, shared_tile);
        const auto q = cuda::listed_rows(p.q, space.in_q, p.head_dim_qk);
        cuda::add_tile_product(block, shared_tile, q, column, space.b, d_k);
        block.sync();  // before the tile is written again
      }
      if (wants_v) {
        drop_tile(block, p, space.facts, tile.begin, t.probs);
        write_by_rows(block, t.probs, shared_tile);
        const auto d_out = cuda::listed_rows(g.d_out, space.in_d_out, p.head_dim_v);
        cuda::add_tile_product(block, shared_tile, d_out, column, space.b, d_v);
      }
    }
    const semantics::Tile all = semantics::tile_at(task.block, kTile, s.rows_kv);
    if (wants_k) write(block, g.d_k, task, all, p.head_dim_qk, p.softmax_scale, d_k);
    if (wants_v) write(block, g.d_v, task, all, p.head_dim_v, problem::keep_scale<double>(p), d_v);
  }

  template <class Block>
  REGARD_DEVICE_FN void write(const Block& block, const cuda::View& view,
                              const cuda::HeadTask& task, semantics::Tile keys,
                              std::int64_t columns, double scale,
                              const float (&sums)[kOwn][kSums]) {
    const auto by = static_cast<float>(scale);
    const float scales[kOwn] = {by, by, by, by};
    const auto to = cuda::key_rows(view, task.b, task.head_kv, keys, columns);
    cuda::write_sums(block, to, 0, task.columns * kColumns, sums, scales);
  }
};

}  // namespace regard::cuda_efficient

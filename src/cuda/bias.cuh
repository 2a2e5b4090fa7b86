#pragma once

#include <cstdint>

#include "cuda/backward_args.h"
#include "cuda/grad_tile.cuh"
#include "cuda/tasks.cuh"

namespace regard::cuda {

/// d_bias. A block has a tile of the bias's elements: 64 queries of one head, or the one row that
/// serves all of them, by 64 keys, or the one that serves all; it sums over the dimensions in which
/// the bias is broadcast. Sums are f64, each of one thread, and in one order.
struct BiasKernel {
  using Args = BackwardArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 1;
  static constexpr int kAtSums = GradLayout<kOwn>::kAtA;  // after the last product
  static constexpr int kSumBytes = kTile * kTile * static_cast<int>(sizeof(double));
  static constexpr int kSharedBytes = kAtSums + kSumBytes;
  static_assert(kAtSums % alignof(double) == 0 && kSharedBytes >= GradLayout<kOwn>::kBytes);

  struct Grid {
    std::int64_t batches, heads, row_blocks, key_tiles;
  };
  struct Task {
    std::int64_t b, head, row_block, key_tile;  // 0 where broadcast
  };

  REGARD_KERNEL_FN std::int64_t row_blocks(const Problem& p) {
    return (p.seqlen_q + kTile - 1) / kTile;
  }
  REGARD_KERNEL_FN Grid grid(const GradProblem& g) {
    const Problem& p = g.problem;
    const bool* full = g.bias_is_full;
    return {full[0] ? p.batch : 1, full[1] ? p.num_heads_q : 1, full[2] ? row_blocks(p) : 1,
            full[3] ? count_key_tiles(p) : 1};
  }
  REGARD_KERNEL_FN std::int64_t count_tasks(const GradProblem& g) {
    const Grid n = grid(g);
    return n.batches * n.heads * n.row_blocks * n.key_tiles;
  }
  REGARD_KERNEL_FN Task task_at(const Grid& n, std::int64_t index) {
    Task t{};
    t.key_tile = index % n.key_tiles;
    index /= n.key_tiles;
    t.row_block = index % n.row_blocks;
    index /= n.row_blocks;
    t.head = index % n.heads;
    t.b = index / n.heads;
    return t;
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Grid n = grid(args.grad);
    for_each_task(block, count_tasks(args.grad), [&](std::int64_t index) {
      const Task task = task_at(n, index);
      double sums[kOwn][kOwn];
      clear(sums);
      const Problem& p = args.grad.problem;
      const bool* full = args.grad.bias_is_full;
      for (std::int64_t b = task.b; b < (full[0] ? task.b + 1 : p.batch); ++b) {
        for (std::int64_t h = task.head; h < (full[1] ? task.head + 1 : p.num_heads_q); ++h) {
          add_head(block, args, task, b, h, sums);
        }
      }
      write(block, args.grad, task, sums);
    });
  }

  template <class Block>
  REGARD_DEVICE_FN void add_head(const Block& block, const Args& args, const Task& task,
                                 std::int64_t b, std::int64_t h, double (&sums)[kOwn][kOwn]) {
    const GradProblem& g = args.grad;
    const Problem& p = g.problem;
    const auto space = grad_space<kOwn>(block);
    const Sequence s = problem::sequence_of(p, b);
    const std::int64_t rows_end = g.bias_is_full[2] ? task.row_block + 1 : row_blocks(p);
    for (std::int64_t index = task.row_block; index < rows_end; ++index) {
      const RowBlock rows = head_rows(queries_of(s), h, index);
      const Reach reach = reach_of(p, rows, s);
      semantics::TileSpan tiles = semantics::tiles_of(Reach::keys(reach), kTile);
      if (g.bias_is_full[3]) tiles = {task.key_tile, task.key_tile + 1};
      load_grad_rows(block, g, s, rows, args.delta, space);
      for (std::int64_t key = tiles.begin; key < tiles.end; ++key) {
        const semantics::Tile tile = semantics::tile_at(key, kTile, s.band.len_kv);
        const semantics::TileClass seen = classify(reach, tile);
        if (seen == semantics::TileClass::kEmpty) continue;
        const bool is_full = seen == semantics::TileClass::kFull;
        GradTile t;
        const std::int64_t head_kv = semantics::kv_head(h, p.group_size);
        compute_grad_tile(block, g, {b, head_kv, tile, is_full}, space, &t);
        REGARD_DEVICE_UNROLL
        for (int i = 0; i < kOwn; ++i) {
          REGARD_DEVICE_UNROLL
          for (int c = 0; c < kOwn; ++c) sums[i][c] += static_cast<double>(t.d_scores[i][c]);
        }
      }
    }
  }

  /// The tile's sums, over its rows and keys too where the bias has one of them.
  template <class Block>
  REGARD_DEVICE_FN void write(const Block& block, const GradProblem& g, const Task& task,
                              const double (&sums)[kOwn][kOwn]) {
    const Problem& p = g.problem;
    const bool* full = g.bias_is_full;
    const auto tile = block.template shared<double>(kAtSums, kTile * kTile);
    const Place at = place_of(block);
    block.sync();
    for (int i = 0; i < kOwn; ++i) {
      for (int c = 0; c < kOwn; ++c) tile[(at.row + i) * kTile + at.column + c] = sums[i][c];
    }
    block.sync();
    const int rows = full[2] ? kTile : 1, keys = full[3] ? kTile : 1;
    for (int n = block.thread(); n < rows * keys; n += kThreads) {
      const int r = n / keys, c = n % keys;
      const std::int64_t i = task.row_block * kTile + r, j = task.key_tile * kTile + c;
      if ((full[2] && i >= p.seqlen_q) || (full[3] && j >= p.seqlen_kv)) continue;
      double sum = 0.0;
      for (int y = r; y < (full[2] ? r + 1 : kTile); ++y) {
        for (int x = c; x < (full[3] ? c + 1 : kTile); ++x) {
          const double part = tile[y * kTile + x];
          sum += part;
        }
      }
      char* const row = problem::row_address(g.d_bias, task.b, task.head, i);
      store_element(g.d_bias.type, row, j * g.d_bias.stride[3], sum);
    }
  }
};

}  // namespace regard::cuda

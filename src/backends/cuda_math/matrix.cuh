#pragma once

#include <cstdint>

#include "backends/cuda_math/args.h"
#include "cuda/edit.cuh"
#include "cuda/reduce.cuh"
#include "cuda/scaled_rows.cuh"
#include "cuda/tasks.cuh"

// MATH's matrices of scores in the workspace, and their products with rows of tensors.

namespace regard::cuda_math {

using cuda::kOwn;
using cuda::kPitch;
using cuda::kTile;
using problem::Problem;
using problem::Sequence;

/// Rows of one (b, kv head).
REGARD_KERNEL_FN std::int64_t matrix_rows(const Problem& p) { return p.seqlen_q * p.group_size; }

/// Those, and columns, that a sequence has: fewer than the longest, where sequences are packed.
REGARD_KERNEL_FN std::int64_t queries_held(const Problem& p, std::int64_t b) {
  return problem::held_rows(p.q.starts, p.seqlen_q, p.total_q, b);
}
REGARD_KERNEL_FN std::int64_t keys_held(const Problem& p, std::int64_t b) {
  return problem::held_rows(p.k.starts, p.seqlen_kv, p.total_kv, b);
}

/// Row `row` of (b, kv head) of a matrix.
template <class T>
REGARD_DEVICE_FN T* matrix_row(const Problem& p, char* matrix, std::int64_t b, std::int64_t head_kv,
                               std::int64_t row) {
  const std::int64_t at = (b * p.num_heads_kv + head_kv) * matrix_rows(p) + row;
  return reinterpret_cast<T*>(matrix) + at * p.seqlen_kv;
}

/// The row of (b, h, i).
template <class T>
REGARD_DEVICE_FN T* matrix_row_of(const Problem& p, char* matrix, std::int64_t b, std::int64_t h,
                                  std::int64_t i) {
  const std::int64_t g = h % p.group_size;
  return matrix_row<T>(p, matrix, b, semantics::kv_head(h, p.group_size), i * p.group_size + g);
}

template <class T>
REGARD_KERNEL_FN constexpr cuda::Element own_type() {
  return sizeof(T) == sizeof(double) ? cuda::Element::kF64 : cuda::Element::kF32;
}

/// Calls f(row, lane) for every row that the sequence of a (b, kv head) has, a warp to a row, as a
/// block of rows of its own.
template <class Block, class F>
REGARD_DEVICE_FN void for_each_row(const Block& block, const Problem& p, F f) {
  const std::int64_t rows = p.batch * p.num_heads_kv * matrix_rows(p);
  const int warp = block.thread() / cuda::kWarp, lane = block.thread() % cuda::kWarp;
  for (std::int64_t task = block.index(); task * cuda::kWarps < rows; task += block.count()) {
    const std::int64_t at = task * cuda::kWarps + warp;
    if (at >= rows) continue;
    const std::int64_t bh = at / matrix_rows(p), row = at % matrix_rows(p);
    const std::int64_t b = bh / p.num_heads_kv, first_head = bh % p.num_heads_kv * p.group_size;
    if (row >= queries_held(p, b) * p.group_size) continue;
    f(cuda::RowBlock{b, first_head, p.group_size, row, 1}, lane);
  }
}
REGARD_KERNEL_FN std::int64_t count_row_tasks(const Problem& p) {
  return (p.batch * p.num_heads_kv * matrix_rows(p) + cuda::kWarps - 1) / cuda::kWarps;
}

/// A block to a tile of the matrix: kTile rows of a kv head, kTile keys.
REGARD_KERNEL_FN cuda::HeadGrid tile_grid(const Problem& p) {
  return {cuda::count_row_blocks(p), cuda::count_key_tiles(p)};
}

/// Where a block that computes scores keeps the facts of its rows, and stages products.
template <class T>
struct TileLayout {
  using Space = cuda::Staging<T, kOwn>;
  static constexpr int kAtPlaces = kTile * static_cast<int>(sizeof(cuda::RowFacts<T>));
  static constexpr int kAtA = kAtPlaces + kTile * static_cast<int>(sizeof(std::int64_t));
  static constexpr int kAtB = kAtA + Space::kBytesA;
  static constexpr int kBytes = kAtB + Space::kBytesB;
};

/// A tile, what its rows see of it, and the block's shared memory.
template <class Facts, class Places, class Staged>
struct MatrixTile {
  Sequence s;
  cuda::RowBlock rows;
  semantics::Tile keys;
  semantics::TileClass seen;
  Facts facts;
  Places in_q;  // where the rows lie
  Staged a, b;
};
template <class Facts, class Places, class Staged>
MatrixTile(Sequence, cuda::RowBlock, semantics::Tile, semantics::TileClass, Facts, Places, Staged,
           Staged) -> MatrixTile<Facts, Places, Staged>;

/// Writes the facts of its rows, which are to be read behind a barrier.
template <class T, class Block>
REGARD_DEVICE_FN auto open_tile(const Block& block, const Problem& p, const cuda::HeadTask& task) {
  using Layout = TileLayout<T>;
  const Sequence s = problem::sequence_of(p, task.b);
  const cuda::RowBlock rows = cuda::group_rows(p, cuda::queries_of(s), task.head_kv, task.block);
  const semantics::Tile keys = semantics::tile_at(task.columns, kTile, s.band.len_kv);
  const MatrixTile tile{
      s,
      rows,
      keys,
      cuda::classify(cuda::reach_of(p, rows, s), keys),
      block.template shared<cuda::RowFacts<T>>(0, kTile),
      block.template shared<std::int64_t>(Layout::kAtPlaces, kTile),
      block.template shared<T>(Layout::kAtA, cuda::kDepth<T> * kPitch),
      block.template shared<T>(Layout::kAtB, cuda::kDepth<T> * Layout::Space::kPitchB)};
  cuda::write_row_facts<T>(block, p, s, rows, tile.facts, tile.in_q);
  return tile;
}

/// sums += q k^T of the tile, whose rows of K are `keys`. Begins with a barrier.
template <class T, class Block, class Tile, class Keys>
REGARD_DEVICE_FN void add_scores(const Block& block, const Problem& p, const Tile& t,
                                 const Keys& keys, T (&sums)[kOwn][kOwn]) {
  const auto q = cuda::listed_rows(p.q, t.in_q, p.head_dim_qk);
  cuda::add_row_products(block, q, keys, p.head_dim_qk, t.a, t.b, sums);
}

/// Calls f(row, key, own i, own c) for the thread's elements of a tile that the matrix has.
template <class Block, class F>
REGARD_DEVICE_FN void for_own_elements(const Block& block, const Problem& p,
                                       const cuda::RowBlock& rows, std::int64_t first, F f) {
  const cuda::Place at = cuda::place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const std::int64_t j = first + at.column + c;
      if (at.row + i < rows.count && j < p.seqlen_kv) f(rows.begin + at.row + i, j, i, c);
    }
  }
}

/// out = scale * matrix * rows, with the matrix as it is (rows of K or V: out and d_q) or
/// transposed (rows of q or d_out: d_k and d_v, summed over a group). Hidden elements leave their
/// rows out. kCached: rows are V's, of a call that is_cached().
template <class T, bool kTransposed, bool kCached>
struct ProductKernel {
  struct Args {
    Problem problem{};
    char* matrix = nullptr;
    cuda::View rows, out;
    std::int64_t columns = 0;
    double scale = 1.0;
    std::int64_t kv_entries = 0;  // of cached rows
  };
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 2;
  using Space = cuda::Staging<T, kOwn>;
  static constexpr int kSharedBytes = Space::kBytes;

  REGARD_KERNEL_FN cuda::HeadGrid grid(const Args& args) {
    const Problem& p = args.problem;
    const std::int64_t blocks = kTransposed ? cuda::count_key_tiles(p) : cuda::count_row_blocks(p);
    return {blocks, (args.columns + kTile - 1) / kTile};
  }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.problem;
    cuda::for_each_head_task(block, p, grid(args), [&](const cuda::HeadTask& task) {
      const std::int64_t row_count = queries_held(p, task.b) * p.group_size;
      const semantics::Tile all_keys{0, keys_held(p, task.b)};
      if (task.block * kTile >= (kTransposed ? all_keys.size : row_count)) return;
      const cuda::DenseRows matrix = {
          own_type<T>(), p.seqlen_kv,
          reinterpret_cast<char*>(matrix_row<T>(p, args.matrix, task.b, task.head_kv, 0)),
          p.seqlen_kv * static_cast<std::int64_t>(sizeof(T)), row_count};
      const cuda::RowBlock all_rows{task.b, task.head_kv * p.group_size, p.group_size, 0,
                                    row_count};
      if constexpr (kTransposed) {
        multiply(block, args, task, matrix, cuda::query_rows(args.rows, all_rows, args.columns),
                 cuda::key_rows(args.out, task.b, task.head_kv, all_keys, args.columns));
      } else if constexpr (kCached) {
        // Not those past its length, which a cache may not have.
        const Sequence s = problem::sequence_of(p, task.b);
        const semantics::Tile held{0, s.band.len_kv};
        multiply(block, args, task, matrix,
                 cuda::rows_in_cache(p, s, args.kv_entries, task.head_kv, held,
                                     {args.rows, p.scales_v, {}, args.columns}),
                 cuda::query_rows(args.out, all_rows, args.columns));
      } else {
        multiply(block, args, task, matrix,
                 cuda::key_rows(args.rows, task.b, task.head_kv, all_keys, args.columns),
                 cuda::query_rows(args.out, all_rows, args.columns));
      }
    });
  }

  template <class Block, class Rows, class Out>
  REGARD_DEVICE_FN void multiply(const Block& block, const Args& args, const cuda::HeadTask& task,
                                 const cuda::DenseRows& matrix, const Rows& rows, const Out& out) {
    constexpr int kDepth = cuda::kDepth<T>;
    const auto a = block.template shared<T>(0, kDepth * kPitch);
    const auto b = block.template shared<T>(Space::kBytesA, kDepth * Space::kPitchB);
    const std::int64_t first = task.block * kTile, column = task.columns * kTile;
    const std::int64_t depth = rows.count;
    T sums[kOwn][kOwn];
    cuda::clear(sums);
    for (std::int64_t k = 0; k < depth; k += kDepth) {
      block.sync();
      if constexpr (kTransposed) {
        cuda::stage<T, kDepth, kTile, false, kPitch>(block, matrix, k, first, a);
      } else {
        cuda::stage<T, kTile, kDepth, true, kPitch>(block, matrix, first, k, a);
      }
      cuda::stage<T, kDepth, kTile, false, Space::kPitchB>(block, rows, k, column, b);
      block.sync();
      const int terms = depth - k < kDepth ? static_cast<int>(depth - k) : kDepth;
      cuda::add_terms<true, Space::kPitchB>(cuda::place_of(block), terms, a, b, sums);
    }
    const T scale = static_cast<T>(args.scale);
    const T scales[kOwn] = {scale, scale, scale, scale};
    cuda::write_sums(block, out, first, column, sums, scales);
  }
};

}  // namespace regard::cuda_math

// Gradients that are sums over whole dimensions: of a bias and of sinks. Each element is one
// task's, summed in f64 in one order, so that nothing depends on threads. Included
// by the passes.

#pragma once

#include <cstdint>

#include "cpu/backward/tile.inl"

namespace regard::cpu {

/// The part of d_bias that a task owns: a block of each dimension that is not broadcast, and in the
/// others the one element that there is.
struct BiasBlock {
  std::int64_t b, head_kv, query_block, key_tile;  // 0 where broadcast
  std::int64_t queries, heads, keys;               // of the block; 1 where broadcast
};

REGARD_KERNEL_FN BiasBlock bias_block(const BackwardArgs& a, std::int64_t task) {
  const Problem& p = a.grad.problem;
  const BiasGrid grid = bias_grid(a);
  const bool* full = a.grad.bias_is_full;
  BiasBlock block{};
  block.key_tile = task % grid.key_tiles;
  task /= grid.key_tiles;
  block.query_block = task % grid.query_blocks;
  task /= grid.query_blocks;
  block.head_kv = task % grid.heads_kv;
  block.b = task / grid.heads_kv;
  const std::int64_t query = block.query_block * a.queries_per_task;
  const std::int64_t left = p.seqlen_q - query;
  block.queries = !full[2] ? 1 : left < a.queries_per_task ? left : a.queries_per_task;
  block.heads = full[1] ? p.group_size : 1;
  block.keys = full[3] ? tile_at(block.key_tile, a.tile_kv, p.seqlen_kv).size : 1;
  return block;
}

/// Adds a tile of d_scores^T [keys][W] to the block's sums [queries][heads][keys].
template <class V>
static void add_to_bias(const BackwardTask<V>& t, const BiasBlock& block, Tile tile, double* sums) {
  const RowBlock<V>& row_block = t.row_block().rows;
  const bool* full = t.a.grad.bias_is_full;
  const auto* const d_scores = t.d_scores();
  const std::int64_t query = block.query_block * t.a.queries_per_task;
  const std::int64_t head = t.head_kv * t.problem().group_size;
  for (int w = 0; w < row_block.rows; ++w) {
    const std::int64_t i = full[2] ? row_block.query[w] - query : 0;
    const std::int64_t h = full[1] ? row_block.head[w] - head : 0;
    double* const row = sums + (i * block.heads + h) * block.keys;
    for (std::int64_t j = 0; j < tile.size; ++j) {
      row[full[3] ? j : 0] += static_cast<double>(d_scores[j * V::kWidth + w]);
    }
  }
}

/// Adds what rows [begin, end) of one sequence and kv head give.
template <class V>
static void add_rows_to_bias(const BackwardTask<V>& t, const BiasBlock& block, std::int64_t begin,
                             std::int64_t end, double* sums) {
  const BackwardArgs& a = t.a;
  for (std::int64_t row = begin; row < end; row += V::kWidth) {
    set_grad_rows(t, row, row + V::kWidth < end ? V::kWidth : end - row);
    set_row_stats(t);
    const RowBlock<V>& row_block = t.row_block().rows;
    TileSpan tiles =
        tiles_of(semantics::visible_keys(t.s.band, row_block.i_begin, row_block.i_end), a.tile_kv);
    if (a.grad.bias_is_full[3]) {
      const bool visible = block.key_tile >= tiles.begin && block.key_tile < tiles.end;
      tiles = {block.key_tile, block.key_tile + (visible ? 1 : 0)};
    }
    for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
      const Tile tile = tile_at(index, a.tile_kv, t.s.band.len_kv);
      recompute_tile(t, load_grad_tile(t, tile));
      add_to_bias(t, block, tile, sums);
    }
  }
}

REGARD_KERNEL_FN void write_bias_block(const BackwardArgs& a, const BiasBlock& block,
                                       const double* sums) {
  const View& view = a.grad.d_bias;
  const std::int64_t query = block.query_block * a.queries_per_task;
  const std::int64_t head = block.head_kv * a.grad.problem.group_size;
  for (std::int64_t i = 0; i < block.queries; ++i) {
    for (std::int64_t h = 0; h < block.heads; ++h) {
      char* const row = row_address(view, block.b, head + h, query + i);
      for (std::int64_t j = 0; j < block.keys; ++j, ++sums) {
        const std::int64_t at = (block.key_tile * a.tile_kv + j) * view.stride[3];
        store_row(view.type, row + at * element_bytes(view.type), sums, 1, 1);
      }
    }
  }
}

template <class V>
static void backward_bias(const void* opaque, std::int64_t task, char* scratch) {
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  const bool* full = a.grad.bias_is_full;
  const BiasBlock block = bias_block(a, task);
  auto* const sums = reinterpret_cast<double*>(scratch + a.at_d_bias);
  for (std::int64_t x = 0; x < block.queries * block.heads * block.keys; ++x) sums[x] = 0.0;
  const std::int64_t batches = full[0] ? 1 : p.batch, heads = full[1] ? 1 : p.num_heads_kv;
  const std::int64_t query = block.query_block * a.queries_per_task;
  for (std::int64_t b = 0; b < batches; ++b) {
    const Sequence s = sequence_of(p, block.b + b);
    const std::int64_t query_end = full[2] ? query + block.queries : p.seqlen_q;
    const std::int64_t end = query_end < s.len_q ? query_end : s.len_q;
    for (std::int64_t h = 0; h < heads; ++h) {
      const BackwardTask<V> t = row_block_task<V>(a, s, block.head_kv + h, scratch);
      add_rows_to_bias(t, block, query * p.group_size, end * p.group_size, sums);
    }
  }
  write_bias_block(a, block, sums);
}

// ---- sinks

/// The sum of d_out * out of one row, less its d_lse. An output of 0 adds nothing, whatever d_out
/// holds: a row that sees only its sink has no other.
template <class V>
static double row_delta(const BackwardTask<V>& t, std::int64_t h, std::int64_t i) {
  using T = typename V::Scalar;
  const GradProblem& g = t.a.grad;
  const Problem& p = g.problem;
  double delta = 0.0;
  const double descale = descale_of(g.descale_d_out, t.s.b, t.head_kv);
  if (g.delta.present) {
    delta = static_cast<double>(*element_at<T>(g.delta, row_index(g.delta, t.s.b, h, i)));
  } else {
    T* const out = t.shared(t.a.at_out);
    T* const d_out = out + p.head_dim_v;  // there is room for a row block's rows
    load_dense_row<V>(p.out.type, row_address(p.out, t.s.b, h, i), p.head_dim_v, out);
    load_dense_row<V>(g.d_out.type, row_address(g.d_out, t.s.b, h, i), p.head_dim_v, d_out);
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      const auto scale = static_cast<T>(row_scale(p, g.scales_d_out, {t.s.b, h, i}, d));
      if (out[d] == T(0)) continue;
      delta += static_cast<double>(out[d]) * static_cast<double>(d_out[d] * scale);
    }
    delta *= descale;
  }
  if (!g.d_lse.present) return delta;
  return delta - static_cast<double>(*element_at<T>(g.d_lse, row_index(g.d_lse, t.s.b, h, i)));
}

/// The sum over the rows of query head h of sink's weight times delta.
template <class V>
static double sum_sink_deltas(const BackwardTask<V>& t, std::int64_t h, typename V::Scalar sink) {
  using T = typename V::Scalar;
  const GradProblem& g = t.a.grad;
  double sum = 0.0;
  if (is_8_bit_float(g.problem.out.type) && !g.delta.present) {  // delta is not out's
    const std::int64_t rows = t.s.len_q * g.problem.group_size;
    for (std::int64_t row = 0; row < rows; row += V::kWidth) {
      set_grad_rows(t, row, row + V::kWidth < rows ? V::kWidth : rows - row);
      set_row_stats(t);
      const GradRowBlock<V>& block = t.row_block();
      for (int w = 0; w < block.rows.rows; ++w) {
        const SavedRow<T> saved = saved_row<T>(g, t.s.b, h, block.rows.query[w]);
        if (block.rows.head[w] != h || saved.sum == T(0)) continue;
        sum += sink_share(saved, sink) * static_cast<double>(block.delta[w]);
      }
    }
    return sum;
  }
  for (std::int64_t i = 0; i < t.s.len_q; ++i) {
    const SavedRow<T> saved = saved_row<T>(g, t.s.b, h, i);
    if (saved.sum != T(0)) sum += sink_share(saved, sink) * row_delta(t, h, i);
  }
  return sum;
}

/// A sink's weight in a row is e^(sink - lse); it has no value vector.
template <class V>
static void backward_sinks(const void* opaque, std::int64_t h, char* scratch) {
  using T = typename V::Scalar;
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  const auto sink = static_cast<T>(*element_at<float>(p.sinks, h * p.sinks.stride[0]));
  double d_sink = 0.0;
  for (std::int64_t b = 0; b < p.batch && sink != static_cast<T>(-__builtin_inf()); ++b) {
    const Sequence s = sequence_of(p, b);
    d_sink -= sum_sink_deltas<V>(row_block_task<V>(a, s, h / p.group_size, scratch), h, sink);
  }
  *element_at<float>(a.grad.d_sinks, h * a.grad.d_sinks.stride[0]) = static_cast<float>(d_sink);
}

}  // namespace regard::cpu

#pragma once

#include <cstdint>

#include "cpu/kv_operand.h"
#include "cpu/problem.h"
#include "cpu/rows.h"
#include "semantics/tiles.h"

// A row block: V::kWidth rows of one (b, kv head) in vector lanes, and the reading and writing of
// its tensors. Arrays that row blocks compute on are [n][W] with W = V::kWidth.

namespace regard::cpu {

using semantics::Tile;
using semantics::tile_at;
using semantics::tiles_of;
using semantics::TileSpan;

/// Where the online softmax of a row block's rows stands.
template <class V>
struct RowState {
  typename V::Scalar max[V::kWidth];  // of the scores so far; -inf: none
  typename V::Scalar sum[V::kWidth];  // of 2^((score - max) * factor)
};

/// Nothing seen yet.
template <class V>
REGARD_KERNEL_FN void clear_state(RowState<V>* state) {
  for (int w = 0; w < V::kWidth; ++w) {
    state->max[w] = static_cast<typename V::Scalar>(-__builtin_inf());
    state->sum[w] = 0;
  }
}

template <class V>
struct RowBlock {
  using T = typename V::Scalar;
  static constexpr int kWidth = V::kWidth;

  RowState<V> state;  // the sink included, a first key without a value
  std::int64_t query[kWidth];
  std::int64_t head[kWidth];
  semantics::KeyRange keys[kWidth];  // visible by arithmetic
  std::int64_t position[kWidth];     // on the diagonal
  T slope[kWidth];
  std::int32_t segment[kWidth];
  T query_factor;  // of q where it is packed (query_factor)
  T descale_v;
  std::int64_t b;
  std::int64_t len_q;       // of the sequence
  std::int64_t len_kv;      //
  std::int64_t shift;       // of the diagonal
  std::int64_t tree_begin;  // the key of tree_mask's first column; may be below 0
  std::int64_t rows;        // lanes in use; the others are computed on zeros and never written
  int vectors;              // that hold those lanes
  bool has_out;             // its out holds a sum; not before its first tile
  std::int64_t i_begin;     // queries [i_begin, i_end)
  std::int64_t i_end;
};

/// Lanes that are computed: those of the vectors that hold rows.
template <class V>
REGARD_KERNEL_FN int lanes_of(const RowBlock<V>& row_block) {
  return row_block.vectors * V::kLanes;
}

/// What queries are multiplied by where they are packed: both descales of the scores, and -1 where
/// the scale is negative and left to the factor, which is positive: the greatest score is then the
/// greatest exponent.
REGARD_KERNEL_FN double query_factor(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  const double descale = descale_of(p.descale_q, b, head_kv) * k_operand(p, b, head_kv).descale;
  return p.prescale_scores || p.softmax_scale > 0.0 ? descale : -descale;
}

/// Rows [row_begin, row_begin + rows) of the sequence, all within its length.
template <class V>
static void set_rows(const Problem& p, const Sequence& s, std::int64_t head_kv,
                     std::int64_t row_begin, std::int64_t rows, RowBlock<V>* row_block) {
  using T = typename V::Scalar;
  const T infinity = static_cast<T>(__builtin_inf());
  row_block->b = s.b;
  row_block->len_q = s.len_q;
  row_block->len_kv = s.band.len_kv;
  row_block->shift = s.band.shift;
  row_block->tree_begin = s.band.len_kv - p.tree_keys;
  row_block->query_factor = static_cast<T>(query_factor(p, s.b, head_kv));
  row_block->descale_v = static_cast<T>(v_operand(p, s.b, head_kv).descale);
  row_block->rows = rows;
  row_block->vectors = static_cast<int>((rows + V::kLanes - 1) / V::kLanes);
  std::int64_t i = row_begin / p.group_size;
  std::int64_t g = row_begin % p.group_size;
  row_block->i_begin = i;
  for (int w = 0; w < rows; ++w) {
    const std::int64_t h = head_kv * p.group_size + g;
    row_block->query[w] = i;
    row_block->head[w] = h;
    row_block->keys[w] = semantics::visible_keys(s.band, i);
    row_block->position[w] = semantics::diagonal_position(i, s.band.shift);
    row_block->slope[w] = T(0);
    if (p.slopes.present) {
      const std::int64_t at = s.b * p.slopes.stride[0] + h * p.slopes.stride[1];
      row_block->slope[w] = static_cast<T>(*element_at<float>(p.slopes, at));
    }
    row_block->segment[w] = 0;
    if (p.segments_q.present) {
      const std::int64_t at = row_index(p.segments_q, s.b, 0, i);
      row_block->segment[w] = *element_at<std::int32_t>(p.segments_q, at);
    }
    // A sink of -inf stands for none.
    const T sink = p.sinks.present
                       ? static_cast<T>(*element_at<float>(p.sinks, h * p.sinks.stride[0]))
                       : -infinity;
    row_block->state.max[w] = sink;
    row_block->state.sum[w] = sink == -infinity ? T(0) : T(1);
    if (++g == p.group_size) {
      g = 0;
      ++i;
    }
  }
  row_block->i_end = row_block->query[rows - 1] + 1;
  // Lanes that are not in use repeat the last row.
  for (std::int64_t w = rows, last = rows - 1; w < lanes_of(*row_block); ++w) {
    row_block->query[w] = row_block->query[last];
    row_block->head[w] = row_block->head[last];
    row_block->keys[w] = row_block->keys[last];
    row_block->position[w] = row_block->position[last];
    row_block->slope[w] = row_block->slope[last];
    row_block->segment[w] = row_block->segment[last];
    row_block->state.max[w] = row_block->state.max[last];
    row_block->state.sum[w] = row_block->state.sum[last];
  }
}

/// The keys that any of the row block's rows may see by arithmetic.
template <class V>
REGARD_KERNEL_FN semantics::KeyRange reach(const RowBlock<V>& row_block) {
  return {row_block.keys[0].lo, row_block.keys[row_block.rows - 1].hi};  // ends grow with the row
}

/// Addresses of the rows of `view` in lanes [first, first + V::kLanes); returns how many are in
/// use.
template <class V>
REGARD_KERNEL_FN int lane_rows(const View& view, const RowBlock<V>& row_block, int first,
                               char* (&rows)[V::kLanes]) {
  int count = 0;
  for (; count < V::kLanes && first + count < row_block.rows; ++count) {
    const int w = first + count;
    rows[count] = row_address(view, row_block.b, row_block.head[w], row_block.query[w]);
  }
  return count;
}

/// The row block's rows of `view` [rows][dim] as [dim][W]; unused lanes of the vectors in use are
/// 0.
template <class V>
static void pack_columns(const View& view, const RowBlock<V>& row_block, std::int64_t dim,
                         typename V::Scalar* columns) {
  for (int v = 0; v < row_block.vectors; ++v) {
    char* rows[V::kLanes]{};
    const int count = lane_rows(view, row_block, v * V::kLanes, rows);
    load_columns<V>(view.type, rows, count, dim, columns + v * V::kLanes);
  }
}

/// columns [dim][W] of q^T or d_out^T times the scales of their rows, or of these rows' blocks.
template <class V>
static void scale_columns(const Problem& p, const View& scales, const RowBlock<V>& row_block,
                          std::int64_t dim, typename V::Scalar* columns) {
  if (!scales.present) return;
  for (int w = 0; w < row_block.rows; ++w) {
    const QueryRow row{row_block.b, row_block.head[w], row_block.query[w]};
    for (std::int64_t d = 0; d < dim; ++d) {
      columns[d * V::kWidth + w] *= static_cast<typename V::Scalar>(row_scale(p, scales, row, d));
    }
  }
}

/// q^T [head_dim_qk][W], times the row block's factor and the scales of K's columns.
template <class V>
static void pack_queries(const Problem& p, const RowBlock<V>& row_block, typename V::Scalar* q_t) {
  using T = typename V::Scalar;
  pack_columns(p.q, row_block, p.head_dim_qk, q_t);
  scale_columns(p, p.scales_q, row_block, p.head_dim_qk, q_t);
  if (row_block.query_factor == 1 && !p.channel_scales_k.present) return;
  const std::int64_t head_kv = row_block.head[0] / p.group_size;
  for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
    const auto factor =
        V::set(row_block.query_factor * static_cast<T>(channel_scale(p, head_kv, d)));
    for (int v = 0; v < V::kVectors; ++v) {
      T* const at = q_t + d * V::kWidth + v * V::kLanes;
      V::store(at, V::load(at) * factor);
    }
  }
}

/// What a row's sum of weighted values is multiplied by: their descale over the sum of its weights,
/// and over the share that dropout keeps. 0 for a row with neither key nor sink (otherwise the
/// largest term alone is 1), whose sum of values is 0. NaN sums stay NaN.
template <class V>
REGARD_KERNEL_FN typename V::Scalar inverse_sum(const Problem& p, const RowBlock<V>& row_block,
                                                int w) {
  using T = typename V::Scalar;
  const T keep = p.dropout.threshold != 0 ? static_cast<T>(p.dropout.threshold) / T(65536) : T(1);
  const T sum = row_block.state.sum[w] * keep;
  return sum == T(0) ? T(0) : row_block.descale_v / sum;
}

/// lse and saved_stats of the row block's rows.
template <class V>
static void write_stats(const Problem& p, const RowBlock<V>& row_block) {
  if (!p.lse.present && !p.stats.present) return;
  for (int w = 0; w < row_block.rows; ++w) {
    const double max = static_cast<double>(row_block.state.max[w]) * p.score_unit;
    write_row_stats(p, row_block.b, row_block.head[w], row_block.query[w], max,
                    row_block.state.sum[w]);
  }
}

/// Rows past their sequence's length: output 0, and they see nothing.
template <class V>
static void write_padding(const Problem& p, const TaskRows& t, std::int64_t begin) {
  using T = typename V::Scalar;
  const T zero = 0;
  for (std::int64_t row = begin; row < t.end; ++row) {
    const std::int64_t i = row / p.group_size;
    const std::int64_t h = t.head_kv * p.group_size + row % p.group_size;
    store_row(p.out.type, row_address(p.out, t.b, h, i), &zero, 0, p.head_dim_v);
    write_row_stats(p, t.b, h, i, 0.0, zero);
  }
}

/// The first of the task's rows that lies past the sequence's length.
REGARD_KERNEL_FN std::int64_t padding_begin(const Problem& p, const Sequence& s,
                                            const TaskRows& t) {
  return semantics::clamp(s.len_q * p.group_size, t.begin, t.end);
}

}  // namespace regard::cpu

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
  bool is_written;          // its rows of out are
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

/// Lanes that are not in use repeat the last row.
template <class V, class T>
REGARD_KERNEL_FN void repeat_last(const RowBlock<V>& row_block, T* of_lanes) {
  for (std::int64_t w = row_block.rows; w < lanes_of(row_block); ++w) {
    of_lanes[w] = of_lanes[row_block.rows - 1];
  }
}

/// Queries and heads of the row block's rows, from row_begin of the sequence on.
template <class V>
REGARD_KERNEL_FN void set_places(const Problem& p, std::int64_t head_kv, std::int64_t row_begin,
                                 RowBlock<V>* row_block) {
  const std::int64_t last = row_block->rows - 1;
  row_block->i_begin = row_begin / p.group_size;
  row_block->i_end = (row_begin + last) / p.group_size + 1;
  if (p.group_size == 1) {
    for (int w = 0; w < lanes_of(*row_block); ++w) {
      row_block->query[w] = row_begin + (w < last ? w : last);
      row_block->head[w] = head_kv;
    }
    return;
  }
  std::int64_t i = row_block->i_begin, g = row_begin - i * p.group_size;
  for (int w = 0; w <= last; ++w) {
    row_block->query[w] = i;
    row_block->head[w] = head_kv * p.group_size + g;
    if (++g == p.group_size) {
      g = 0;
      ++i;
    }
  }
  repeat_last(*row_block, row_block->query);
  repeat_last(*row_block, row_block->head);
}

/// What some edits alone read of a row: where it stands, its slope and its segment.
template <class V>
static void set_row_edits(const Problem& p, const Sequence& s, RowBlock<V>* row_block) {
  using T = typename V::Scalar;
  for (int w = 0; w < row_block->rows; ++w) {
    const std::int64_t i = row_block->query[w];
    row_block->position[w] = semantics::diagonal_position(i, s.band.shift);
    if (p.slopes.present) {
      const std::int64_t at = s.b * p.slopes.stride[0] + row_block->head[w] * p.slopes.stride[1];
      row_block->slope[w] = static_cast<T>(*element_at<float>(p.slopes, at));
    }
    if (p.segments_q.present) {
      const std::int64_t at = row_index(p.segments_q, s.b, 0, i);
      row_block->segment[w] = *element_at<std::int32_t>(p.segments_q, at);
    }
  }
  repeat_last(*row_block, row_block->position);
  repeat_last(*row_block, row_block->slope);
  repeat_last(*row_block, row_block->segment);
}

/// States that the sinks start; a sink of -inf stands for none.
template <class V>
REGARD_KERNEL_FN void start_states(const Problem& p, RowBlock<V>* row_block) {
  using T = typename V::Scalar;
  const T infinity = static_cast<T>(__builtin_inf());
  if (!p.sinks.present) {
    for (int at = 0; at < lanes_of(*row_block); at += V::kLanes) {
      V::store(row_block->state.max + at, V::set(-infinity));
      V::store(row_block->state.sum + at, V::set(0));
    }
    return;
  }
  for (int w = 0; w < lanes_of(*row_block); ++w) {
    const auto sink =
        static_cast<T>(*element_at<float>(p.sinks, row_block->head[w] * p.sinks.stride[0]));
    row_block->state.max[w] = sink;
    row_block->state.sum[w] = sink == -infinity ? T(0) : T(1);
  }
}

/// What each row may see by arithmetic.
template <class V>
REGARD_KERNEL_FN void set_keys(const semantics::Band& band, RowBlock<V>* row_block) {
  const semantics::KeyRange first = semantics::visible_keys(band, row_block->query[0]);
  const semantics::KeyRange last = semantics::visible_keys(band, row_block->i_end - 1);
  const std::int64_t apart = row_block->i_end - 1 - row_block->query[0];
  // Ends that no length cuts short go up with the query.
  if (last.lo - first.lo == apart && last.hi - first.hi == apart) {
    for (int w = 0; w < lanes_of(*row_block); ++w) {
      const std::int64_t by = row_block->query[w] - row_block->query[0];
      row_block->keys[w] = {first.lo + by, first.hi + by};
    }
    return;
  }
  for (int w = 0; w < row_block->rows; ++w) {
    row_block->keys[w] = semantics::visible_keys(band, row_block->query[w]);
  }
  repeat_last(*row_block, row_block->keys);
}

/// Rows [row_begin, row_begin + rows) of the sequence, all within its length.
template <class V>
static void set_rows(const Problem& p, const Sequence& s, std::int64_t head_kv,
                     std::int64_t row_begin, std::int64_t rows, RowBlock<V>* row_block) {
  row_block->b = s.b;
  row_block->len_q = s.len_q;
  row_block->len_kv = s.band.len_kv;
  row_block->shift = s.band.shift;
  row_block->tree_begin = s.band.len_kv - p.tree_keys;
  row_block->query_factor = static_cast<typename V::Scalar>(query_factor(p, s.b, head_kv));
  row_block->descale_v = static_cast<typename V::Scalar>(v_operand(p, s.b, head_kv).descale);
  row_block->rows = rows;
  row_block->vectors = static_cast<int>((rows + V::kLanes - 1) / V::kLanes);
  row_block->is_written = false;
  set_places(p, head_kv, row_begin, row_block);
  if (s.band.window_left < 0 && s.band.window_right < 0) {
    const semantics::KeyRange all = {0, s.band.len_kv};
    for (int w = 0; w < lanes_of(*row_block); ++w) row_block->keys[w] = all;
  } else {
    set_keys(s.band, row_block);
  }
  if (p.slopes.present || p.segments_q.present || p.functions != nullptr) {
    set_row_edits(p, s, row_block);
  }
  start_states(p, row_block);
}

/// The keys that any of the row block's rows may see by arithmetic.
template <class V>
REGARD_KERNEL_FN semantics::KeyRange reach(const RowBlock<V>& row_block) {
  return {row_block.keys[0].lo, row_block.keys[row_block.rows - 1].hi};  // ends grow with the row
}

/// Addresses of the rows of `view` in lanes [first, first + V::kLanes), the last one's again where
/// lanes are not in use; returns how many are.
template <class V>
REGARD_KERNEL_FN int lane_rows(const View& view, const RowBlock<V>& row_block, int first,
                               char** rows) {
  const std::int64_t bytes = element_bytes(view.type);
  char* const sequence = row_address(view, row_block.b, 0, 0);
  const std::int64_t head_bytes = view.stride[1] * bytes, row_bytes = view.stride[2] * bytes;
  for (int lane = 0; lane < V::kLanes; ++lane) {
    const int w = first + lane;
    rows[lane] = sequence + row_block.head[w] * head_bytes + row_block.query[w] * row_bytes;
  }
  const std::int64_t left = row_block.rows - first;
  return left < V::kLanes ? static_cast<int>(left) : V::kLanes;
}

/// The row block's rows of `view` [rows][dim] as [dim][W]; unused lanes of the vectors in use are
/// 0.
template <class V>
static void pack_columns(const View& view, const RowBlock<V>& row_block, std::int64_t dim,
                         typename V::Scalar* columns) {
  for (int v = 0; v < row_block.vectors; ++v) {
    char* rows[V::kLanes];
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

/// share [W]: what each row's sum of weighted values is multiplied by, their descale over the sum
/// of its weights, and over the share that dropout keeps. 0 for a row with neither key nor sink
/// (otherwise the largest term alone is 1), whose sum of values is 0. NaN sums stay NaN.
template <class V>
REGARD_KERNEL_FN void inverse_sums(const Problem& p, const RowBlock<V>& row_block,
                                   typename V::Scalar* share) {
  using T = typename V::Scalar;
  const T keep = p.dropout.threshold != 0 ? static_cast<T>(p.dropout.threshold) / T(65536) : T(1);
  for (int at = 0; at < lanes_of(row_block); at += V::kLanes) {
    const auto sum = V::load(row_block.state.sum + at) * V::set(keep);
    V::store(share + at, V::select(sum == V::set(0), V::set(0), V::set(row_block.descale_v) / sum));
  }
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
    clear_row(p.out.type, row_address(p.out, t.b, h, i), p.head_dim_v);
    write_row_stats(p, t.b, h, i, 0.0, zero);
  }
}

/// The first of the task's rows that lies past the sequence's length.
REGARD_KERNEL_FN std::int64_t padding_begin(const Problem& p, const Sequence& s,
                                            const TaskRows& t) {
  return semantics::clamp(s.len_q * p.group_size, t.begin, t.end);
}

}  // namespace regard::cpu

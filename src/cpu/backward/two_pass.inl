// The backward in two passes; see args.h. Included by isa_<isa>.cc.

#include <cstdint>

#include "cpu/backward/bias.inl"
#include "cpu/backward/captured.inl"
#include "cpu/backward/keys.inl"

namespace regard::cpu {

template <class V>
static void backward_queries(const void* opaque, std::int64_t task, char* scratch) {
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  const TaskRows rows = task_rows(p, a.grid, task);
  const Sequence s = sequence_of(p, rows.b);
  const std::int64_t end = padding_begin(p, s, rows);
  clear_padding(a.grad, rows, end);
  if (end == rows.begin) return;

  const BackwardTask<V> t = row_block_task<V>(a, s, rows.head_kv, scratch);
  set_grad_rows(t, rows.begin, end - rows.begin);
  set_row_stats(t);
  auto* const d_q = t.shared(a.at_d_q);
  for (std::int64_t x = 0; x < padded_head_dim(p.head_dim_qk) * V::kWidth; ++x) d_q[x] = 0;
  const RowBlock<V>& row_block = t.row_block().rows;
  const TileSpan tiles =
      tiles_of(semantics::visible_keys(s.band, row_block.i_begin, row_block.i_end), a.tile_kv);
  for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
    const GradTile<V> tile = load_grad_tile(t, tile_at(index, a.tile_kv, s.band.len_kv));
    recompute_tile(t, tile);
    if (t.seen().size == 0) continue;
    differentiate_edits(t, tile.tile.begin);
    const bool finite = V::is_finite(tile.keys, tile.tile.size, p.head_dim_qk);
    add_to_queries(t, tile, t.d_scores(), finite, d_q);
  }
  write_d_queries(t, d_q);
}

/// Adds all rows of the kv head to the sums of a tile.
template <class V>
static void add_rows_to_tile(const BackwardTask<V>& t, Tile tile, KeySums<typename V::Scalar> k,
                             KeySums<typename V::Scalar> v) {
  const Problem& p = t.problem();
  GradTile<V> loaded = load_grad_tile(t, tile);
  const std::int64_t rows = t.s.len_q * p.group_size;
  for (std::int64_t row = 0; row < rows; row += V::kWidth) {
    const std::int64_t count = row + V::kWidth < rows ? V::kWidth : rows - row;
    const std::int64_t i_begin = row / p.group_size, i_last = (row + count - 1) / p.group_size;
    if (is_out_of_reach(t.s, i_begin, i_last + 1, tile)) continue;
    set_grad_rows(t, row, count);
    if (set_row_stats(t)) loaded = load_grad_tile(t, tile);
    pack_grad_rows(t);
    recompute_tile(t, loaded);
    if (t.seen().size == 0) continue;
    differentiate_edits(t, tile.begin);
    add_group_to_keys<V>({t, 0, 1}, tile, k, v);
  }
}

template <class V>
static void backward_keys(const void* opaque, std::int64_t task, char* scratch) {
  using T = typename V::Scalar;
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  const BlockPlace at = block_place(p, a.key_grid, task);
  const Sequence s = sequence_of(p, at.b);
  const BackwardTask<V> t = row_block_task<V>(a, s, at.head_kv, scratch);

  const Tile all = tile_at(at.index, a.tile_kv, s.rows_kv);
  const std::int64_t end = semantics::clamp(s.band.len_kv, all.begin, all.begin + all.size);
  const Tile tile{all.begin, end - all.begin};
  const KeySums<T> k{true, a.at_q_rows, t.shared(a.at_d_k), a.tile_kv, 0};
  const KeySums<T> v{false, a.at_d_out_rows, t.shared(a.at_d_v), a.tile_kv, 0};
  clear_key_sums<V>(k.sums, a.tile_kv, 0, a.tile_kv, p.head_dim_qk);
  clear_key_sums<V>(v.sums, a.tile_kv, 0, a.tile_kv, p.head_dim_v);
  if (tile.size > 0) add_rows_to_tile(t, tile, k, v);
  write_key_gradients(t, {all.begin, all.begin + all.size}, k, v);
}

template <class V>
constexpr BackwardKernel kTwoPass = {
    .d_queries = backward_queries<V>,
    .d_keys = backward_keys<V>,
    .d_bias = backward_bias<V>,
    .d_sinks = backward_sinks<V>,
    .d_captured = backward_captured<V>,
    .width = V::kWidth,
    .lanes = V::kLanes,
    .row_block_bytes = sizeof(GradRowBlock<V>),
    .scalar_bytes = sizeof(typename V::Scalar),
};

}  // namespace regard::cpu

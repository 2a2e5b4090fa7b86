// Gradients of captured tensors, which score_function reads: sums over all scores. The work is
// divided into slices, which depend on the call alone; each sums in f64 in an order of its own, and
// captured.cc adds the slices up, so that nothing depends on threads. Included by the passes.

#pragma once

#include <cstdint>

#include "cpu/backward/tile.inl"

namespace regard::cpu {

/// Adds what rows [begin, end) of one sequence and kv head give.
template <class V>
static void add_rows_to_captured(const BackwardTask<V>& t, std::int64_t begin, std::int64_t end,
                                 const CapturedSums& to) {
  const BackwardArgs& a = t.a;
  const Functions& f = a.grad.problem.functions;
  for (std::int64_t row = begin; row < end; row += V::kWidth) {
    set_grad_rows(t, row, row + V::kWidth < end ? V::kWidth : end - row);
    set_row_stats(t);
    const RowBlock<V>& row_block = t.row_block().rows;
    const TileSpan tiles =
        tiles_of(semantics::visible_keys(t.s.band, row_block.i_begin, row_block.i_end), a.tile_kv);
    for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
      const Tile tile = tile_at(index, a.tile_kv, t.s.band.len_kv);
      recompute_tile(t, load_grad_tile(t, tile));
      if (t.seen().size == 0) continue;
      if (f.edit != nullptr) differentiate_host(t, tile.begin);
      const std::int64_t at = t.seen().begin * V::kWidth;
      a.functions->scatter(f, function_tile(row_block, seen_tile(t, tile.begin)), t.capped() + at,
                           t.d_scores() + at, to, t.scratch + a.at_registers);
    }
  }
}

template <class V>
static void backward_captured(const void* opaque, std::int64_t slice, char* scratch) {
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  double* const sums = a.captured_sums + slice * a.captured_elements;
  for (std::int64_t x = 0; x < a.captured_elements; ++x) sums[x] = 0.0;
  CapturedSums to;
  for (int slot = 0; slot < kMaxCapturedViews; ++slot) {
    const bool is_wanted = a.grad.d_captured[slot].data != nullptr;
    to.sums[slot] = is_wanted ? sums + a.captured_at[slot] : nullptr;
  }
  const std::int64_t count = captured_blocks(a), blocks = count / (p.batch * p.num_heads_kv);
  for (std::int64_t x = slice; x < count; x += a.captured_slices) {
    const std::int64_t head = x / blocks, query = x % blocks * a.queries_per_task;
    const Sequence s = sequence_of(p, head / p.num_heads_kv);
    const std::int64_t end =
        query + a.queries_per_task < s.len_q ? query + a.queries_per_task : s.len_q;
    const BackwardTask<V> t = row_block_task<V>(a, s, head % p.num_heads_kv, scratch);
    add_rows_to_captured(t, query * p.group_size, end * p.group_size, to);
  }
}

}  // namespace regard::cpu

// Gradients of captured tensors, which score_function reads: sums over all scores. The work is
// divided into slices, which depend on the call alone; each sums in f64 in an order of its own, and
// captured.cc adds the slices up, so that nothing depends on threads. Included by the passes.

#pragma once

#include <cstdint>

#include "cpu/backward/tile.inl"

namespace regard::cpu {

/// Whether scores within the box may add to the range of elements, by the ends of indices.
static __attribute__((noinline)) bool reaches_captured(const Functions& f,
                                                       const problem::FunctionBox& box,
                                                       const CapturedSums& to) {
  constexpr std::int64_t kElements = 1024;  // of a captured tensor of indices
  problem::Interval bounds[semantics::kMaxFunctionSteps];
  problem::bound_steps(f.gradient, f.captured, box, kElements, bounds);
  for (std::int32_t i = 0; i < f.gradient.scatter_count; ++i) {
    const semantics::FunctionStep& gather = f.gradient.steps[f.gradient.scatters[i].gather];
    const CapturedView& view = f.captured[gather.slot];
    if (!to.is_wanted[gather.slot]) continue;
    double lo = 0.0, hi = 0.0;
    for (int d = 0; d < gather.count; ++d) {
      const auto extent = static_cast<double>(view.extent[d]);
      const problem::Interval index = bounds[gather.args[d]];
      lo = lo * extent + (index.lo > 0.0 ? index.lo : 0.0);
      hi = hi * extent + (index.hi < extent - 1.0 ? index.hi : extent - 1.0);
    }
    const auto first = static_cast<double>(to.first[gather.slot]);
    if (first + hi >= 0.0 && first + lo < static_cast<double>(to.size)) return true;
  }
  return false;
}

/// Adds what rows [begin, end) of one sequence and kv head give.
template <class V>
static void add_rows_to_captured(const BackwardTask<V>& t, std::int64_t begin, std::int64_t end,
                                 const CapturedSums& to) {
  const BackwardArgs& a = t.a;
  const Functions& f = *a.grad.problem.functions;
  for (std::int64_t row = begin; row < end; row += V::kWidth) {
    const std::int64_t count = row + V::kWidth < end ? V::kWidth : end - row;
    const RowBlock<V>& row_block = t.row_block().rows;
    if (to.size < a.captured_elements) {
      set_rows<V>(a.grad.problem, t.s, t.head_kv, row, count, &t.row_block().rows);
      problem::FunctionBox box = box_of(t.s, row_block);
      box.kv = {0.0, static_cast<double>(t.s.band.len_kv - 1)};
      if (!reaches_captured(f, box, to)) continue;
    }
    set_grad_rows(t, row, count);
    set_row_stats(t);
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
  CapturedSums to;
  to.sums = a.captured_sums + slice * a.captured_size;
  to.size = a.captured_size;
  for (std::int64_t x = 0; x < to.size; ++x) to.sums[x] = 0.0;
  for (int slot = 0; slot < kMaxCapturedViews; ++slot) {
    to.is_wanted[slot] = a.grad.problem.functions->d_captured[slot].data != nullptr;
    to.first[slot] = a.captured_at[slot] - a.captured_begin;
  }
  const std::int64_t count = captured_blocks(a);
  if (count == 0 || p.functions->gradient.scatter_count == 0) return;
  const std::int64_t blocks = count / (p.batch * p.num_heads_kv);
  for (std::int64_t x = slice; x < count; x += a.captured_slices) {
    const std::int64_t head = x / blocks, query = x % blocks * a.queries_per_task;
    const Sequence s = sequence_of(p, head / p.num_heads_kv);
    const std::int64_t end = semantics::clamp(query + a.queries_per_task, 0, s.len_q);
    const BackwardTask<V> t = row_block_task<V>(a, s, head % p.num_heads_kv, scratch);
    add_rows_to_captured(t, query * p.group_size, end * p.group_size, to);
  }
}

}  // namespace regard::cpu

// One task of MATH's forward, unfused: scores of complete rows, edits, softmax over the rows,
// product with V; each step finishes for all row blocks of the task before the next. Included by
// isa_<isa>.cc.

#include <cstdint>

#include "backends/math/kernel.h"
#include "backends/math/scores_out.inl"
#include "cpu/forward/columns_out.h"
#include "cpu/forward/edit_scores.h"
#include "cpu/forward/narrow_weights.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/kv_tiles.h"

namespace regard::math {

using cpu::ProductInput;
using cpu::Sequence;
using semantics::TileClass;

/// A task's rows, and where it works.
template <class V>
struct Task {
  using T = typename V::Scalar;
  const ForwardArgs& a;
  const Sequence& s;
  std::int64_t head_kv;
  std::int64_t count;  // row blocks in use
  cpu::TileSpan tiles;
  RowBlock<V>* row_blocks;
  T* q_t;
  T* out_t;
  T* block_t;  // the part of a block of keys in out_t
  T* scores;
  T* tile;
  cpu::EditScratch<T> edit_scratch;

  /// scores^T of a row block at key j.
  T* scores_at(std::int64_t x, std::int64_t j) const {
    return scores + (x * a.problem.seqlen_kv + j) * V::kWidth;
  }
  Tile tile_at(std::int64_t index) const { return cpu::tile_at(index, a.tile_kv, s.band.len_kv); }
  /// Whether a block of keys, or the last tile, ends with it.
  bool ends_block(std::int64_t index) const {
    return (index + 1) * a.tile_kv % cpu::kSumBlockKeys == 0 || index + 1 == tiles.end;
  }
  /// All tiles as one.
  Tile reach() const {
    if (tiles.begin == tiles.end) return {};
    const Tile last = tile_at(tiles.end - 1);
    const std::int64_t begin = tiles.begin * a.tile_kv;
    return {begin, last.begin + last.size - begin};
  }
  TileClass classify(std::int64_t x, Tile at) const {
    const std::int64_t end = at.begin + at.size;
    const bool has_tree = a.problem.tree.present && end > row_blocks[x].tree_begin;
    return semantics::classify_tile(s.band, row_blocks[x].i_begin, row_blocks[x].i_end, at.begin,
                                    end, has_tree || cpu::has_data_mask(a.problem));
  }
};

template <class V>
static void start_row_blocks(const Task<V>& t, std::int64_t row_begin, std::int64_t row_end) {
  const Problem& p = t.a.problem;
  for (std::int64_t x = 0; x < t.count; ++x) {
    const std::int64_t begin = row_begin + x * V::kWidth;
    const std::int64_t rows = begin + V::kWidth < row_end ? V::kWidth : row_end - begin;
    cpu::set_rows<V>(p, t.s, t.head_kv, begin, rows, t.row_blocks + x);
    cpu::pack_queries<V>(p, t.row_blocks[x], t.q_t + x * p.head_dim_qk * V::kWidth);
  }
}

/// One row block's edited scores of one tile; what a row may not see is -inf.
template <class V>
static void compute_tile(const Task<V>& t, std::int64_t x, Tile tile,
                         ProductInput<typename V::Scalar> keys) {
  using T = typename V::Scalar;
  const Problem& p = t.a.problem;
  const RowBlock<V>& row_block = t.row_blocks[x];
  T* const scores = t.scores_at(x, tile.begin);
  const TileClass tile_class = t.classify(x, tile);
  if (tile_class == TileClass::kEmpty) {
    for (std::int64_t y = 0; y < tile.size * V::kWidth; ++y) scores[y] = masked_score<T>();
  } else {
    const T* const q_t = t.q_t + x * p.head_dim_qk * V::kWidth;
    alignas(64) T max[V::kWidth] = {};  // not of the edited scores
    cpu::with_vectors<V::kVectors>(
        row_block.vectors, [&](auto vectors) __attribute__((always_inline)) {
          cpu::scores_of<V, cpu::ScalarTerm<V>, decltype(vectors)::value>(
              keys, q_t, scores, tile.size, p.head_dim_qk, max);
        });
    if (p.scores_stage == ScoresStage::kScaled) {
      write_scores<V>(p, row_block, tile, scores, p.softmax_scale);
    }
    const bool partial = tile_class == TileClass::kPartial;
    cpu::edit_scores<V>(p, row_block, tile, partial, scores, t.edit_scratch);
  }
  if (p.scores_stage == ScoresStage::kScaled) hide_masked<V>(p, row_block, tile, scores);
  if (p.scores_stage == ScoresStage::kEdited) write_scores<V>(p, row_block, tile, scores, 1.0);
}

template <class V>
static void compute_scores(const Task<V>& t) {
  const Problem& p = t.a.problem;
  for (std::int64_t index = t.tiles.begin; index < t.tiles.end; ++index) {
    const Tile tile = t.tile_at(index);
    const auto keys = cpu::load_tile<V>(cpu::k_operand(p, t.s.b, t.head_kv), tile, t.tile);
    for (std::int64_t x = 0; x < t.count; ++x) compute_tile(t, x, tile, keys);
  }
}

/// Scores become 2^((score - row maximum) * factor); dividing by the row's sum waits for the
/// output.
template <class V>
static void apply_softmax(const Task<V>& t, std::int64_t x) {
  const Problem& p = t.a.problem;
  RowBlock<V>& row_block = t.row_blocks[x];
  alignas(64) typename V::Scalar max[V::kWidth];
  alignas(64) typename V::Scalar rescale[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) max[w] = masked_score<typename V::Scalar>();
  for (std::int64_t index = t.tiles.begin; index < t.tiles.end; ++index) {
    const Tile tile = t.tile_at(index);
    cpu::accumulate_max<V>(row_block.vectors, tile.size, t.scores_at(x, tile.begin), max);
  }
  cpu::update_max<V>(p, row_block.vectors, max, &row_block.state, rescale);  // from the sink
  cpu::RowState<V> total = row_block.state;
  for (int w = 0; w < V::kWidth; ++w) row_block.state.sum[w] = 0;
  for (std::int64_t index = t.tiles.begin; index < t.tiles.end; ++index) {
    const Tile tile = t.tile_at(index);
    cpu::exponentiate_rounded<V, true>(p, tile.size, t.scores_at(x, tile.begin), &row_block);
    if (t.ends_block(index)) {
      cpu::close_block<V>(p, row_block.vectors, &row_block.state, &total, rescale);
    }
  }
  row_block.state = total;
  if (p.scores_stage == ScoresStage::kProbs) {
    write_probs<V>(p, row_block, t.reach(), t.scores_at(x, t.reach().begin));
  }
  if (p.dropout.threshold == 0) return;
  for (std::int64_t index = t.tiles.begin; index < t.tiles.end; ++index) {
    const Tile tile = t.tile_at(index);
    cpu::drop_probs<V>(p, t.s, row_block, tile, t.scores_at(x, tile.begin));
  }
}

/// What a tile's values add to the block of every row block. Not inline: beside the rest GCC 12
/// spills the product's sums on AVX2.
template <class V>
__attribute__((noinline)) static void add_tile(const Task<V>& t, Tile tile,
                                               const typename V::Scalar* one) {
  using T = typename V::Scalar;
  const Problem& p = t.a.problem;
  const auto values = cpu::load_tile<V>(cpu::v_operand(p, t.s.b, t.head_kv), tile, t.tile);
  const bool finite = cpu::all_finite<V>(values, tile.size, p.head_dim_v);
  for (std::int64_t x = 0; x < t.count; ++x) {
    const TileClass tile_class = t.classify(x, tile);
    if (tile_class == TileClass::kEmpty) continue;
    const bool select = tile_class == TileClass::kPartial && !finite;
    cpu::with_vectors<V::kVectors>(
        t.row_blocks[x].vectors, [&](auto vectors) __attribute__((always_inline)) {
          using Term = cpu::ScalarTerm<V>;
          constexpr int kVectors = decltype(vectors)::value;
          const auto a = cpu::transposed(values);
          const T* const probs = t.scores_at(x, tile.begin);
          T* const block_t = t.block_t + x * p.head_dim_v * V::kWidth;
          if (select) {
            cpu::add_product<V, Term, kVectors, true>(a, probs, block_t, p.head_dim_v, tile.size,
                                                      one);
          } else {
            cpu::add_product<V, Term, kVectors, false>(a, probs, block_t, p.head_dim_v, tile.size,
                                                       one);
          }
        });
  }
}

template <class V>
static void multiply_values(const Task<V>& t) {
  using T = typename V::Scalar;
  const Problem& p = t.a.problem;
  alignas(64) T one[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) one[w] = 1;
  const std::int64_t out_size = p.head_dim_v * V::kWidth;
  for (std::int64_t y = 0; y < t.count * out_size; ++y) t.out_t[y] = t.block_t[y] = 0;
  for (std::int64_t index = t.tiles.begin; index < t.tiles.end; ++index) {
    add_tile(t, t.tile_at(index), one);
    if (!t.ends_block(index)) continue;
    for (std::int64_t x = 0; x < t.count; ++x) {
      cpu::ColumnsOut<V>::close_block(p, t.row_blocks[x], one, t.block_t + x * out_size,
                                      t.out_t + x * out_size);
    }
  }
}

template <class V>
static void forward(const void* opaque, std::int64_t task, char* scratch) {
  using T = typename V::Scalar;
  const ForwardArgs& a = *static_cast<const ForwardArgs*>(opaque);
  const Problem& p = a.problem;
  const cpu::TaskRows rows = cpu::task_rows(p, a.grid, task);
  const Sequence s = cpu::sequence_of(p, rows.b);
  const std::int64_t end = cpu::padding_begin(p, s, rows);
  cpu::write_padding<V>(p, rows, end);
  if (p.scores.present) hide_padding<T>(p, rows, end);
  if (end == rows.begin) return;

  Task<V> t{a,
            s,
            rows.head_kv,
            (end - rows.begin + V::kWidth - 1) / V::kWidth,
            {},
            reinterpret_cast<RowBlock<V>*>(scratch + a.at_row_blocks),
            reinterpret_cast<T*>(scratch + a.at_q),
            reinterpret_cast<T*>(scratch + a.at_out),
            reinterpret_cast<T*>(scratch + a.at_block),
            reinterpret_cast<T*>(scratch + a.at_scores),
            reinterpret_cast<T*>(scratch + a.at_tile),
            {reinterpret_cast<T*>(scratch + a.at_row), scratch + a.at_registers, a.functions}};
  start_row_blocks(t, rows.begin, end);
  t.tiles = cpu::tiles_of(
      semantics::visible_keys(s.band, t.row_blocks[0].i_begin, t.row_blocks[t.count - 1].i_end),
      a.tile_kv);
  compute_scores(t);
  for (std::int64_t x = 0; x < t.count; ++x) apply_softmax(t, x);
  multiply_values(t);
  for (std::int64_t x = 0; x < t.count; ++x) {
    if (p.scores.present) hide_unreached<V>(p, t.row_blocks[x], t.reach());
    cpu::ColumnsOut<V>::write(p, t.row_blocks[x], t.out_t + x * p.head_dim_v * V::kWidth);
    cpu::write_stats(p, t.row_blocks[x]);
  }
}

}  // namespace regard::math

// What every pass of the backward computes of a row block and a tile of keys: probabilities and
// the gradients of scores, again from q, k and v. Included by the passes.

#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/backward/args.h"
#include "cpu/forward/edit_scores.h"
#include "cpu/forward/narrow_weights.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/visible_keys.h"
#include "cpu/kv_tiles.h"
#include "cpu/simd/product.h"

// V is a vocabulary with the products of a backward: FloatProducts or PairProducts, whose operands
// hold V::kPack neighbours along the contraction.
//
// What a row may not see has the probability -0 and the gradient -0: they add nothing, and their
// bits mark what the selecting products leave out.

namespace regard::cpu {

template <class V>
REGARD_KERNEL_FN typename V::Mask is_hidden(typename V::Vec x) {
  return V::to_bits(x) == V::to_bits(V::set(static_cast<typename V::Scalar>(-0.0)));
}

/// The keys of a tile that a row block sees some of, counted from the tile's first.
struct SeenKeys {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// What is saved and known of a row block's rows.
template <class V>
struct GradRowBlock {
  using T = typename V::Scalar;
  RowBlock<V> rows;
  T max[V::kWidth];          // of the row's scores, or its lse
  T inverse_sum[V::kWidth];  // 0: the row sees nothing
  T delta[V::kWidth];        // the sum of d_out * out, less d_lse
  bool q_is_finite;          // of at_q_rows
  bool d_out_is_finite;      // of at_d_out_rows
};

/// A row block of one sequence's rows of one kv head, and where a worker computes on it.
template <class V>
struct BackwardTask {
  using T = typename V::Scalar;
  using Operand = typename V::Operand;
  const BackwardArgs& a;
  const Sequence& s;
  std::int64_t head_kv;
  char* scratch;           // the worker's
  char* rows;              // the row block's own, packed
  std::int64_t index = 0;  // of the row block in its group

  const Problem& problem() const { return a.grad.problem; }
  GradRowBlock<V>& row_block() const {
    return *reinterpret_cast<GradRowBlock<V>*>(rows + a.at_row_block);
  }
  /// What the row block sees of the tile at hand: the worker's own, for others may be at other
  /// tiles.
  SeenKeys& seen() const {
    return *reinterpret_cast<SeenKeys*>(scratch + index * a.score_bytes + a.at_seen);
  }
  Operand* packed(std::int64_t offset) const { return reinterpret_cast<Operand*>(rows + offset); }
  T* probs() const { return scores(a.at_probs); }
  T* d_scores() const { return scores(a.at_d_scores); }
  T* capped() const { return scores(a.at_capped); }
  T* before_host() const { return scores(a.at_before_host); }
  EditScratch<T> edit_scratch() const {
    return {shared(a.at_row), scratch + a.at_registers, a.functions};
  }
  T* shared(std::int64_t offset) const { return reinterpret_cast<T*>(scratch + offset); }
  Operand* operands(std::int64_t offset) const {
    return reinterpret_cast<Operand*>(scratch + offset);
  }

 private:
  T* scores(std::int64_t offset) const {
    return reinterpret_cast<T*>(scratch + index * a.score_bytes + offset);
  }
};

/// A task of two passes: its one row block lies in the scratch.
template <class V>
static BackwardTask<V> row_block_task(const BackwardArgs& a, const Sequence& s,
                                      std::int64_t head_kv, char* scratch) {
  return {a, s, head_kv, scratch, scratch + a.at_rows};
}

/// Operands that hold n elements.
template <class V>
REGARD_KERNEL_FN std::int64_t depth(std::int64_t n) {
  return (n + V::kPack - 1) / V::kPack;
}

/// A tile of K and V.
template <class V>
struct GradTile {
  using Input = ProductInput<typename V::Operand>;
  Tile tile;
  Input keys;    // contracted along head_dim
  Input values;  // likewise
  Input keys_t;  // K^T, contracted along keys
};

/// Reads a tile; copies go to `memory`, tile_bytes of it.
template <class V>
static GradTile<V> load_grad_tile(const BackwardTask<V>& t, Tile tile, char* memory) {
  const BackwardArgs& a = t.a;
  const Problem& p = t.problem();
  const auto at = [&](std::int64_t offset) __attribute__((always_inline)) {
    return reinterpret_cast<typename V::Operand*>(memory + offset);
  };
  const auto keys = V::load_rows(a, k_operand(p, t.s.b, t.head_kv), tile, at(a.at_keys));
  const auto values = V::load_rows(a, v_operand(p, t.s.b, t.head_kv), tile, at(a.at_values));
  const std::int64_t dim = padded_head_dim(p.head_dim_qk);
  return {tile, keys, values, V::transpose_rows(keys, tile.size, dim, at(a.at_keys_t))};
}

/// The same, until the worker loads another one.
template <class V>
static GradTile<V> load_grad_tile(const BackwardTask<V>& t, Tile tile) {
  return load_grad_tile(t, tile, t.scratch + t.a.at_tile);
}

/// columns [dim][W] times what their 8-bit floats stand for. Pairs of bf16 have no descales.
template <class V>
static void descale_columns(const RowBlock<V>& row_block, std::int64_t dim, double descale,
                            typename V::Operand* columns) {
  if constexpr (V::kPack == 1) {
    if (descale == 1.0) return;
    const auto factor = V::set(static_cast<typename V::Scalar>(descale));
    for (std::int64_t d = 0; d < dim; ++d) {
      for (int v = 0; v < row_block.vectors; ++v) {
        auto* const at = columns + d * V::kWidth + v * V::kLanes;
        V::store(at, V::load(at) * factor);
      }
    }
  }
}

/// Rows [row_begin, row_begin + count) of the sequence: q^T, times its scales and the descales of
/// scores, and d_out^T, times its own.
template <class V>
static void set_grad_rows(const BackwardTask<V>& t, std::int64_t row_begin, std::int64_t count) {
  const GradProblem& grad = t.a.grad;
  const Problem& p = grad.problem;
  RowBlock<V>& row_block = t.row_block().rows;
  set_rows<V>(p, t.s, t.head_kv, row_begin, count, &row_block);
  V::load_columns(p.q, row_block, p.head_dim_qk, t.packed(t.a.at_q));
  V::load_columns(grad.d_out, row_block, p.head_dim_v, t.packed(t.a.at_d_out));
  if constexpr (V::kPack == 1) {
    scale_columns(p, p.scales_q, row_block, p.head_dim_qk, t.packed(t.a.at_q));
    scale_columns(p, grad.scales_d_out, row_block, p.head_dim_v, t.packed(t.a.at_d_out));
  }
  descale_columns<V>(row_block, p.head_dim_qk, score_descale(p, t.s.b, t.head_kv),
                     t.packed(t.a.at_q));
  descale_columns<V>(row_block, p.head_dim_v, descale_of(grad.descale_d_out, t.s.b, t.head_kv),
                     t.packed(t.a.at_d_out));
}

/// Edited scores become probabilities, gradients of dropped probabilities those of edited scores:
/// probs * (d_probs - delta). kRounds: probabilities are those that the forward rounded.
template <class V, bool kRounds>
static void differentiate_softmax(const Problem& p, const GradRowBlock<V>& g, std::int64_t size,
                                  typename V::Scalar* scores, typename V::Scalar* d_probs) {
  using T = typename V::Scalar;
  const auto scale = V::set(scales_late(p) ? static_cast<T>(p.softmax_scale) : T(1));
  const auto factor = V::set(static_cast<T>(p.exp2_scale));
  const auto keep = V::set(keep_scale<T>(p) * g.rows.descale_v);
  const auto hidden_value = V::set(T(-0.0));
  for (int v = 0; v < g.rows.vectors; ++v) {
    const int at = v * V::kLanes;
    const auto max = V::load(g.max + at);
    const auto inverse_sum = V::load(g.inverse_sum + at);
    const auto delta = V::load(g.delta + at);
    const auto sees_nothing = inverse_sum == V::set(T(0));
    using Round = RoundProbs<V, kRounds>;
    const auto rounding = Round::of(p.probs_type, subtrahend<V>(max), factor);
    for_blocks<kExp2Vectors>(
        size, [&](std::int64_t j, auto keys) __attribute__((always_inline)) {
          constexpr int kKeys = decltype(keys)::value;
          T* const score = scores + j * V::kWidth + at;
          T* const d_prob = d_probs + j * V::kWidth + at;
          typename V::Vec power[kKeys];
          REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
            // Rounded before the difference, as the saved maximum was: fused, the greatest of huge
            // scores would differ from itself. What is above 0 still is by another order of summing
            // alone, and may be more than exp2 takes.
            const auto x = V::load(score + i * V::kWidth) * scale - max;
            power[i] = V::clear(x > V::set(T(0)), x);
          }
          exp2_nonpositive<V, kKeys>(power, factor);
          REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
            T* const s = score + i * V::kWidth;
            T* const d = d_prob + i * V::kWidth;
            const auto hidden = (V::load(s) == minus_infinity<V>()) | sees_nothing;
            const auto prob = Round::apply(rounding, power[i]) * inverse_sum;
            const auto d_score = prob * V::fma(V::load(d), keep, -delta);
            V::store(s, V::select(hidden, hidden_value, prob));
            V::store(d, V::select(hidden, hidden_value, d_score));
          }
        });
  }
}

/// products^T [tile_kv][W] of a tile's rows with columns [dim][W], of the keys seen. Registers may
/// write others of the tile, too.
template <class V>
static void multiply_tile(const RowBlock<V>& row_block, ProductInput<typename V::Operand> rows,
                          SeenKeys seen, std::int64_t dim, const typename V::Operand* columns,
                          typename V::Scalar* products) {
  with_vectors<V::kVectors>(
      row_block.vectors, [&](auto vectors) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(vectors)::value;
        if constexpr (V::kHasRegisters) {
          V::template multiply_rows<kVectors>(rows, seen, dim, columns, products);
        } else {
          rows.data += seen.begin * rows.row_stride;
          scores_of<V, typename V::Term, kVectors, false, false>(
              rows, columns, products + seen.begin * V::kWidth, seen.size, depth<V>(dim), nullptr);
        }
      });
}

/// Queries [i_begin, i_end) see none of the tile's keys, by arithmetic.
REGARD_KERNEL_FN bool is_out_of_reach(const Sequence& s, std::int64_t i_begin, std::int64_t i_end,
                                      Tile tile) {
  return semantics::classify_tile(s.band, i_begin, i_end, tile.begin, tile.begin + tile.size,
                                  false) == semantics::TileClass::kEmpty;
}

/// Hides keys [begin, end) of a tile of probs or their gradients from every row.
template <class V>
static void hide_keys(const RowBlock<V>& row_block, std::int64_t begin, std::int64_t end,
                      typename V::Scalar* probs) {
  const auto hidden_value = V::set(static_cast<typename V::Scalar>(-0.0));
  for (std::int64_t j = begin; j < end; ++j) {
    for (int v = 0; v < row_block.vectors; ++v) {
      V::store(probs + j * V::kWidth + v * V::kLanes, hidden_value);
    }
  }
}

/// The keys that the row block sees some of, as a tile: `tile_begin` is the loaded tile's first.
template <class V>
REGARD_KERNEL_FN Tile seen_tile(const BackwardTask<V>& t, std::int64_t tile_begin) {
  return {tile_begin + t.seen().begin, t.seen().size};
}

/// Gradients of scores that the host language edited become those before that; hidden ones stay.
template <class V>
__attribute__((noinline)) static void differentiate_host(const BackwardTask<V>& t,
                                                         std::int64_t tile_begin) {
  if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
    const Functions& f = *t.problem().functions;
    const RowBlock<V>& row_block = t.row_block().rows;
    const Tile tile = seen_tile(t, tile_begin);
    float* const row = t.shared(t.a.at_row);
    float* const d_row = row + t.a.tile_kv;
    for (int w = 0; w < row_block.rows; ++w) {
      const semantics::KeyRange keys = keys_in_tile(row_block, w, tile);
      const std::int64_t count = keys.hi - keys.lo;
      if (count <= 0) continue;
      const std::int64_t at = (t.seen().begin + keys.lo) * V::kWidth + w;
      float* const d_scores = t.d_scores() + at;
      copy_strided<float>(t.before_host() + at, V::kWidth, count, row, 1);
      for (std::int64_t x = 0; x < count; ++x) d_row[x] = d_scores[x * V::kWidth] + 0.0f;
      f.edit_gradient(f.user_data, row, d_row, count, row_block.b, row_block.head[w],
                      row_block.query[w], tile.begin + keys.lo);
      for (std::int64_t x = 0; x < count; ++x) {
        float& d = d_scores[x * V::kWidth];
        if (bits_of(d) != bits_of(-0.0f)) d = d_row[x];
      }
    }
  }
}

/// Gradients of score_function's results become those of its scores.
template <class V>
__attribute__((noinline)) static void differentiate_score_function(const BackwardTask<V>& t,
                                                                   std::int64_t tile_begin) {
  const std::int64_t at = t.seen().begin * V::kWidth;
  t.a.functions->differentiate(*t.problem().functions,
                               function_tile(t.row_block().rows, seen_tile(t, tile_begin)),
                               t.capped() + at, t.d_scores() + at, t.scratch + t.a.at_registers);
}

/// Gradients of capped scores become those of scaled ones: softcap's slope is 1 - tanh^2.
template <class V>
static void differentiate_softcap(const BackwardTask<V>& t) {
  using T = typename V::Scalar;
  if (!(t.problem().softcap > 0.0)) return;
  const SeenKeys seen = t.seen();
  const auto softcap = V::set(static_cast<T>(t.problem().softcap));
  T* const d_scores = t.d_scores();
  const T* const capped = t.capped();
  for (std::int64_t j = seen.begin; j < seen.begin + seen.size; ++j) {
    for (int v = 0; v < t.row_block().rows.vectors; ++v) {
      const std::int64_t at = j * V::kWidth + v * V::kLanes;
      const auto tanh = V::load(capped + at) / softcap;
      const auto slope = V::max(V::set(T(1)) - tanh * tanh, V::set(T(0)));
      const auto d = V::load(d_scores + at);
      V::store(d_scores + at, V::select(is_hidden<V>(d), d, d * slope));
    }
  }
}

/// Gradients of edited scores become those of scaled ones, as the products take them.
template <class V>
REGARD_KERNEL_FN void differentiate_edits(const BackwardTask<V>& t, std::int64_t tile_begin) {
  if (t.problem().edits_by_function) {
    const Functions& f = *t.problem().functions;
    if (f.edit != nullptr) differentiate_host(t, tile_begin);
    if (f.score.steps != nullptr) differentiate_score_function(t, tile_begin);
  }
  differentiate_softcap(t);
  if (rounds_d_scores(t.a.grad)) {
    const std::int64_t at = t.seen().begin * V::kWidth;
    round_d_scores<V>(t.a.grad.d_out.type, t.row_block().rows.vectors, t.seen().size,
                      t.d_scores() + at);
  }
}

/// Probabilities before dropout and gradients of edited scores: all of the
/// tile's keys that the row block does not see are hidden in both.
template <class V>
static void recompute_tile(const BackwardTask<V>& t, const GradTile<V>& tile) {
  const BackwardArgs& a = t.a;
  const Problem& p = t.problem();
  GradRowBlock<V>& g = t.row_block();
  const VisibleKeys visible = visible_keys_of(p, t.s, g.rows, tile.tile);
  const Tile item = visible.range;
  // Where no key is seen the empty range begins at key 0, so that no block of keys overlaps it:
  // weights of such a tile are not rounded and must not be read.
  const SeenKeys seen =
      item.size > 0 ? SeenKeys{item.begin - tile.tile.begin, item.size} : SeenKeys{};
  t.seen() = seen;
  const std::int64_t at = seen.begin * V::kWidth;
  auto* const scores = t.probs() + at;
  auto* const d_probs = t.d_scores() + at;
  const auto hide_rest = [&](auto* probs) __attribute__((always_inline)) {
    hide_keys<V>(g.rows, 0, seen.begin, probs);
    hide_keys<V>(g.rows, seen.begin + seen.size, tile.tile.size, probs);
  };
  if (seen.size > 0) {
    multiply_tile<V>(g.rows, tile.keys, seen, p.head_dim_qk, t.packed(a.at_q), t.probs());
    multiply_tile<V>(g.rows, tile.values, seen, p.head_dim_v, t.packed(a.at_d_out), t.d_scores());
  }
  hide_rest(t.probs());
  hide_rest(t.d_scores());
  if (seen.size == 0) return;

  if (!scales_late(p)) scale_and_cap_scores<V>(p, g.rows, seen.size, scores);
  const auto keep = [&](auto* copy) __attribute__((always_inline)) {
    __builtin_memcpy(copy + at, scores,
                     static_cast<std::size_t>(seen.size * V::kWidth) * sizeof(*scores));
  };
  const auto scratch = t.edit_scratch();
  if (p.caps_scores || p.edits_by_function) keep(t.capped());
  if (p.edits_by_function) {
    const Functions& f = *p.functions;
    if (f.score.steps != nullptr) {
      edit_by_score_function<V>(p, g.rows, item, scores, scratch);
      if (f.edit != nullptr) keep(t.before_host());
    }
    if (f.edit != nullptr) edit_by_host<V>(p, g.rows, item, scores, scratch.row);
  }
  bias_and_mask_scores<V>(p, g.rows, item, !visible.all, scores, scratch);
  if (p.dropout.threshold != 0) drop_probs<V>(p, t.s, g.rows, item, d_probs);
  constexpr bool kMayRound = sizeof(typename V::Scalar) == sizeof(float);
  if (kMayRound && rounds_probs(p)) {
    differentiate_softmax<V, kMayRound>(p, g, seen.size, scores, d_probs);
  } else {
    differentiate_softmax<V, false>(p, g, seen.size, scores, d_probs);
  }
}

/// Sums of d_out * out.
template <class V>
static void compute_delta(const BackwardTask<V>& t) {
  using Term = typename V::Term;
  const Problem& p = t.problem();
  GradRowBlock<V>& g = t.row_block();
  auto* const out_t = t.operands(t.a.at_out);
  const auto* const d_out_t = t.packed(t.a.at_d_out);
  V::load_columns(p.out, g.rows, p.head_dim_v, out_t);
  for (int v = 0; v < g.rows.vectors; ++v) {
    typename V::Vec sum{};
    for (std::int64_t d = 0; d < depth<V>(p.head_dim_v); ++d) {
      const std::int64_t at = d * V::kWidth + v * V::kLanes;
      sum = Term::add(sum, Term::load(d_out_t + at), Term::load(out_t + at));
    }
    V::store(g.delta + v * V::kLanes, sum);
  }
}

/// Rows that see so few keys have large probabilities, on which a delta of an output that was
/// rounded to 16 bits would be the largest error of all (5.5e-3 of max|d_k| for 3.1e-3 at 4096
/// causal keys).
inline constexpr std::int64_t kExactDeltaKeys = 64;

/// Whether delta comes from the probabilities: the row block sees few keys, and out is rounded to
/// 16 bits; or out has 8 bits, of which nothing would be left.
template <class V>
static bool needs_exact_delta(const BackwardTask<V>& t) {
  const Element out = t.problem().out.type;
  if (is_8_bit_float(out)) return true;
  const semantics::KeyRange keys = reach(t.row_block().rows);
  return (out == Element::kBf16 || out == Element::kF16) && keys.hi - keys.lo <= kExactDeltaKeys;
}

/// Sums of probs * d_probs, what d_scores are where delta is 0; those of d_out * out for rows of
/// which these are not all keys.
template <class V>
static void compute_exact_delta(const BackwardTask<V>& t) {
  using T = typename V::Scalar;
  GradRowBlock<V>& g = t.row_block();
  alignas(64) T sums[V::kWidth] = {}, shares[V::kWidth] = {};
  for (int w = 0; w < V::kWidth; ++w) g.delta[w] = 0;
  const TileSpan tiles = tiles_of(reach(g.rows), t.a.tile_kv);
  for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
    const GradTile<V> tile = load_grad_tile(t, tile_at(index, t.a.tile_kv, t.s.band.len_kv));
    recompute_tile(t, tile);
    for (std::int64_t j = 0; j < tile.tile.size; ++j) {
      for (int v = 0; v < g.rows.vectors; ++v) {
        const std::int64_t at = v * V::kLanes, in_tile = j * V::kWidth + at;
        V::store(sums + at, V::load(sums + at) + V::load(t.d_scores() + in_tile));
        V::store(shares + at, V::load(shares + at) + V::load(t.probs() + in_tile));
      }
    }
  }
  if (t.a.grad.saved_is_lse) compute_delta(t);
  for (int w = 0; w < lanes_of(g.rows); ++w) {
    const std::int64_t h = g.rows.head[w], i = g.rows.query[w];
    if (complete_delta(t.a.grad, t.s.b, h, i, shares[w], sums + w)) g.delta[w] = sums[w];
  }
}

/// What is saved of the rows that set_grad_rows set, and their delta. True where it read tiles of K
/// and V for that: the scratch's own tile is then another one.
template <class V>
static bool set_row_stats(const BackwardTask<V>& t) {
  using T = typename V::Scalar;
  const GradProblem& grad = t.a.grad;
  GradRowBlock<V>& g = t.row_block();
  for (int w = 0; w < lanes_of(g.rows); ++w) {
    const SavedRow<T> saved = saved_row<T>(grad, t.s.b, g.rows.head[w], g.rows.query[w]);
    g.max[w] = saved.max;
    g.inverse_sum[w] = saved.sum == T(0) ? T(0) : T(1) / saved.sum;
  }
  const bool reads_tiles = !grad.delta.present && needs_exact_delta(t);
  if (reads_tiles) {
    compute_exact_delta(t);
  } else if (!grad.delta.present) {
    compute_delta(t);
  }
  for (int w = 0; w < lanes_of(g.rows); ++w) {
    const std::int64_t h = g.rows.head[w], i = g.rows.query[w];
    if (grad.delta.present) {
      g.delta[w] = *element_at<T>(grad.delta, row_index(grad.delta, t.s.b, h, i));
    }
    if (grad.d_lse.present) {
      g.delta[w] -= *element_at<T>(grad.d_lse, row_index(grad.d_lse, t.s.b, h, i));
    }
  }
  return reads_tiles;
}

/// d_q^T [head_dim_qk][W] += K^T d_scores^T, those of scaled scores as V::round_weights gave them.
template <class V>
static void add_to_queries(const BackwardTask<V>& t, const GradTile<V>& tile,
                           const typename V::Operand* d_scores, bool finite,
                           typename V::Scalar* d_q) {
  const std::int64_t dim =
      t.a.copies_tiles ? padded_head_dim(t.problem().head_dim_qk) : t.problem().head_dim_qk;
  const SeenKeys seen = t.seen();
  alignas(64) typename V::Scalar one[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) one[w] = 1;
  with_vectors<V::kVectors>(
      t.row_block().rows.vectors, [&](auto vectors) __attribute__((always_inline)) {
        using Term = typename V::template VisibleTerm<false>;
        constexpr int kVectors = decltype(vectors)::value;
        const std::int64_t first = seen.begin / V::kPack;  // whole operands, see kKeyBlock
        const std::int64_t size = depth<V>(seen.size);
        auto keys = tile.keys_t;
        keys.data += first * keys.step;
        const auto* const weights = d_scores + first * V::kWidth;
        if (!finite) {
          add_product<V, Term, kVectors, true>(keys, weights, d_q, dim, size, one);
        } else if constexpr (V::kHasRegisters) {
          V::template add_keys<kVectors>(tile.keys_t, d_scores, seen, dim, d_q);
        } else {
          add_product<V, Term, kVectors, false>(keys, weights, d_q, dim, size, one);
        }
      });
}

/// The largest magnitude of the row block's d_q, whose sums are multiplied by `scale`.
template <class V>
static void note_query_amax(const BackwardTask<V>& t, const typename V::Scalar* d_q, double scale) {
  const GradProblem& g = t.a.grad;
  if (!g.gradient_amax.present) return;
  const auto by = static_cast<float>(scale);
  std::uint32_t max = 0;
  for (std::int64_t d = 0; d < g.problem.head_dim_qk; ++d) {
    for (int w = 0; w < t.row_block().rows.rows; ++w) {
      max = larger_magnitude(max, static_cast<float>(d_q[d * V::kWidth + w]) * by);
    }
  }
  raise_amax(g, GradientOf::kQ, f32_of(max));
}

/// The row block's rows of d_q from their sums.
template <class V>
static void write_d_queries(const BackwardTask<V>& t, const typename V::Scalar* d_q) {
  const GradProblem& g = t.a.grad;
  const RowBlock<V>& row_block = t.row_block().rows;
  const double factor = g.problem.softmax_scale * descale_of(g.problem.descale_k, t.s.b, t.head_kv);
  note_query_amax<V>(t, d_q, factor);
  const auto scale =
      V::set(static_cast<typename V::Scalar>(factor * gradient_scale(g, GradientOf::kQ)));
  for (int v = 0; v < row_block.vectors; ++v) {
    char* rows[V::kLanes];
    const int count = lane_rows(g.d_q, row_block, v * V::kLanes, rows);
    store_columns<V>(g.d_q.type, rows, count, g.problem.head_dim_qk, d_q + v * V::kLanes, scale);
  }
}

/// Rows [begin, end) of a kv head, past their sequence's length: d_q is 0.
REGARD_KERNEL_FN void clear_padding(const GradProblem& g, const TaskRows& rows,
                                    std::int64_t begin) {
  const Problem& p = g.problem;
  for (std::int64_t row = begin; row < rows.end; ++row) {
    const std::int64_t h = rows.head_kv * p.group_size + row % p.group_size;
    char* const to = row_address(g.d_q, rows.b, h, row / p.group_size);
    clear_row(g.d_q.type, to, p.head_dim_qk);
  }
}

}  // namespace regard::cpu

// What every pass of the backward computes of a strip of rows and a tile of keys: probabilities and
// the gradients of edited scores, again from q, k and v. Included by backward.inl.

#include <cstddef>
#include <cstdint>

#include "cpu/backward.h"
#include "cpu/edit_scores.h"
#include "cpu/product.h"
#include "cpu/softmax.h"
#include "cpu/strip.h"

// What a row may not see has the probability -0 and the gradient -0: they add nothing, and their
// bits tell the selecting products what to leave out.

namespace regard::cpu {

template <class V>
REGARD_KERNEL_FN typename V::Mask is_hidden(typename V::Vec x) {
  return V::to_bits(x) == V::to_bits(V::set(static_cast<typename V::Scalar>(-0.0)));
}

/// Terms of products with gradients; kLeft: hidden elements stand in a, else in b.
template <class V, bool kLeft>
struct HiddenTerm : ScalarTerm<V> {
  using Vec = typename V::Vec;
  REGARD_KERNEL_FN Vec add_visible(Vec sum, Vec a, Vec b) {
    return V::select(is_hidden<V>(kLeft ? a : b), sum, V::fma(a, b, sum));
  }
};

/// What is saved and known of a strip's rows.
template <class V>
struct GradStrip {
  using T = typename V::Scalar;
  Strip<V> rows;
  T max[V::kWidth];          // of the row's scores, or its lse
  T inverse_sum[V::kWidth];  // 0: the row sees nothing
  T delta[V::kWidth];        // the sum of d_out * out, less d_lse
};

/// One sequence's rows of one kv head, and where a slot computes on them.
template <class V>
struct BackwardTask {
  using T = typename V::Scalar;
  const BackwardArgs& a;
  const Sequence& s;
  std::int64_t head_kv;
  char* scratch;

  const Problem& problem() const { return a.grad.problem; }
  GradStrip<V>& strip() const { return *reinterpret_cast<GradStrip<V>*>(scratch + a.at_strip); }
  T* at(std::int64_t offset) const { return reinterpret_cast<T*>(scratch + offset); }
};

/// A tile of K and V, and what a strip makes of it.
template <class V>
struct GradTile {
  Tile tile;
  ProductInput<typename V::Scalar> keys;
  ProductInput<typename V::Scalar> values;
};

template <class V>
static GradTile<V> load_grad_tile(const BackwardTask<V>& t, Tile tile) {
  const Problem& p = t.problem();
  return {tile, load_tile<V>(p.k, t.s.b, t.head_kv, tile, p.head_dim_qk, t.at(t.a.at_keys)),
          load_tile<V>(p.v, t.s.b, t.head_kv, tile, p.head_dim_v, t.at(t.a.at_values))};
}

/// The row maximum and sum of row (b, h, i); lse is the maximum of a sum of 1.
template <class T>
struct SavedRow {
  T max;
  T sum;  // 0: the row sees nothing
};

template <class T>
REGARD_KERNEL_FN SavedRow<T> saved_row(const GradProblem& g, std::int64_t b, std::int64_t h,
                                       std::int64_t i) {
  const T* const saved = element_at<T>(g.saved, row_index(g.saved, b, h, i));
  if (!g.saved_is_lse) return {saved[0], saved[g.saved.stride[3]]};
  return {saved[0], saved[0] == static_cast<T>(-__builtin_inf()) ? T(0) : T(1)};
}

/// view [rows of the strip][dim] as [dim][W]; unused lanes of the vectors in use are 0.
template <class V>
static void pack_columns(const View& view, const Strip<V>& strip, std::int64_t dim,
                         typename V::Scalar* columns) {
  for (int v = 0; v < strip.vectors; ++v) {
    char* rows[V::kLanes];
    const int count = lane_rows(view, strip, v * V::kLanes, rows);
    load_columns<V>(view.type, rows, count, dim, columns + v * V::kLanes);
  }
}

/// The sums of d_out * out.
template <class V>
static void compute_delta(const BackwardTask<V>& t) {
  const Problem& p = t.problem();
  GradStrip<V>& g = t.strip();
  auto* const out_t = t.at(t.a.at_out);
  const auto* const d_out_t = t.at(t.a.at_d_out);
  pack_columns<V>(p.out, g.rows, p.head_dim_v, out_t);
  for (int v = 0; v < g.rows.vectors; ++v) {
    typename V::Vec sum{};
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      const std::int64_t at = d * V::kWidth + v * V::kLanes;
      sum = V::fma(V::load(d_out_t + at), V::load(out_t + at), sum);
    }
    V::store(g.delta + v * V::kLanes, sum);
  }
}

/// Rows [row_begin, row_begin + count) of the sequence: what is saved of them, q^T and d_out^T.
template <class V>
static void set_grad_rows(const BackwardTask<V>& t, std::int64_t row_begin, std::int64_t count) {
  using T = typename V::Scalar;
  const GradProblem& grad = t.a.grad;
  const Problem& p = grad.problem;
  GradStrip<V>& g = t.strip();
  set_rows<V>(p, t.s, t.head_kv, row_begin, count, &g.rows);
  pack_queries<V>(p, g.rows, t.at(t.a.at_q));
  pack_columns<V>(grad.d_out, g.rows, p.head_dim_v, t.at(t.a.at_d_out));
  if (!grad.delta.present) compute_delta(t);
  for (int w = 0; w < lanes_of(g.rows); ++w) {
    const std::int64_t h = g.rows.head[w], i = g.rows.query[w];
    const SavedRow<T> saved = saved_row<T>(grad, t.s.b, h, i);
    g.max[w] = saved.max;
    g.inverse_sum[w] = saved.sum == T(0) ? T(0) : T(1) / saved.sum;
    if (grad.delta.present) {
      g.delta[w] = *element_at<T>(grad.delta, row_index(grad.delta, t.s.b, h, i));
    }
    if (grad.d_lse.present) {
      g.delta[w] -= *element_at<T>(grad.d_lse, row_index(grad.d_lse, t.s.b, h, i));
    }
  }
}

/// What kept probabilities are multiplied by.
template <class T>
REGARD_KERNEL_FN T keep_scale(const Problem& p) {
  return p.dropout.threshold == 0 ? T(1) : T(65536) / static_cast<T>(p.dropout.threshold);
}

/// Edited scores become probabilities, gradients of dropped probabilities those of edited scores:
/// probs * (d_probs - delta).
template <class V>
static void differentiate_softmax(const Problem& p, const GradStrip<V>& g, std::int64_t size,
                                  typename V::Scalar* scores, typename V::Scalar* d_probs) {
  using T = typename V::Scalar;
  const auto factor = V::set(static_cast<T>(p.factor));
  const auto keep = V::set(keep_scale<T>(p));
  const auto hidden_value = V::set(T(-0.0));
  for (int v = 0; v < g.rows.vectors; ++v) {
    const int at = v * V::kLanes;
    const auto max = V::load(g.max + at);
    const auto inverse_sum = V::load(g.inverse_sum + at);
    const auto delta = V::load(g.delta + at);
    for (std::int64_t j = 0; j < size; ++j) {
      T* const score = scores + j * V::kWidth + at;
      T* const d_prob = d_probs + j * V::kWidth + at;
      const auto s = V::load(score);
      const auto hidden = (s == minus_infinity<V>()) | (inverse_sum == V::set(T(0)));
      const auto prob = exp2_nonpositive<V>(s - max, factor) * inverse_sum;
      const auto d_score = prob * (V::load(d_prob) * keep - delta);
      V::store(score, V::select(hidden, hidden_value, prob));
      V::store(d_prob, V::select(hidden, hidden_value, d_score));
    }
  }
}

/// products^T [size][W] of a tile's rows with columns [dim][W].
template <class V>
static void multiply_tile(const Strip<V>& strip, ProductInput<typename V::Scalar> rows,
                          std::int64_t size, std::int64_t dim, const typename V::Scalar* columns,
                          typename V::Scalar* products) {
  alignas(64) typename V::Scalar unused_max[V::kWidth] = {};
  with_vectors<V::kVectors>(
      strip.vectors, [&](auto vectors) __attribute__((always_inline)) {
        scores_of<V, ScalarTerm<V>, decltype(vectors)::value>(rows, columns, products, size, dim,
                                                              unused_max);
      });
}

REGARD_KERNEL_FN semantics::TileClass class_of(const BackwardArgs& a, const Sequence& s,
                                               std::int64_t i_begin, std::int64_t i_end,
                                               Tile tile) {
  return semantics::classify_tile(s.band, i_begin, i_end, tile.begin, tile.begin + tile.size,
                                  is_opaque(a.grad.problem));
}

/// Probabilities before dropout at at_probs, gradients of edited scores at at_d_scores, for a tile
/// that is not EMPTY.
template <class V>
static void recompute_tile(const BackwardTask<V>& t, const GradTile<V>& tile) {
  const BackwardArgs& a = t.a;
  const Problem& p = t.problem();
  const GradStrip<V>& g = t.strip();
  const std::int64_t size = tile.tile.size;
  auto* const scores = t.at(a.at_probs);
  auto* const d_probs = t.at(a.at_d_scores);
  multiply_tile<V>(g.rows, tile.keys, size, p.head_dim_qk, t.at(a.at_q), scores);
  scale_and_cap_scores<V>(p, g.rows, size, scores);
  if (p.softcap > 0.0) {
    __builtin_memcpy(t.at(a.at_capped), scores,
                     static_cast<std::size_t>(size * V::kWidth) * sizeof(*scores));
  }
  const bool partial =
      class_of(a, t.s, g.rows.i_begin, g.rows.i_end, tile.tile) != semantics::TileClass::kFull;
  bias_and_mask_scores<V>(p, g.rows, tile.tile, partial, scores, t.at(a.at_row));
  multiply_tile<V>(g.rows, tile.values, size, p.head_dim_v, t.at(a.at_d_out), d_probs);
  if (p.dropout.threshold != 0) drop_probs<V>(p, t.s, g.rows, tile.tile, d_probs);
  differentiate_softmax<V>(p, g, size, scores, d_probs);
}

/// Gradients of edited scores become those of scaled ones: softcap's slope is 1 - tanh^2.
template <class V>
static void differentiate_softcap(const BackwardTask<V>& t, std::int64_t size) {
  using T = typename V::Scalar;
  const Problem& p = t.problem();
  if (!(p.softcap > 0.0)) return;
  const auto softcap = V::set(static_cast<T>(p.softcap));
  T* const d_scores = t.at(t.a.at_d_scores);
  const T* const capped = t.at(t.a.at_capped);
  for (std::int64_t j = 0; j < size; ++j) {
    for (int v = 0; v < t.strip().rows.vectors; ++v) {
      const std::int64_t at = j * V::kWidth + v * V::kLanes;
      const auto tanh = V::load(capped + at) / softcap;
      const auto slope = V::max(V::set(T(1)) - tanh * tanh, V::set(T(0)));
      const auto d = V::load(d_scores + at);
      V::store(d_scores + at, V::select(is_hidden<V>(d), d, d * slope));
    }
  }
}

}  // namespace regard::cpu

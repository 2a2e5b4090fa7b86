// The passes of the backward; see backward.h. Included by a backend's isa_<isa>.cc.

#include <cstdint>

#include "cpu/backward_bias.inl"

namespace regard::cpu {

// ---- d_q

/// Rows past their sequence's length.
REGARD_KERNEL_FN void clear_padding(const GradProblem& g, const TaskRows& rows,
                                    std::int64_t begin) {
  const Problem& p = g.problem;
  const float zero = 0;
  for (std::int64_t row = begin; row < rows.end; ++row) {
    const std::int64_t h = rows.head_kv * p.group_size + row % p.group_size;
    char* const to = row_address(g.d_q, rows.b, h, row / p.group_size);
    store_row(g.d_q.type, to, &zero, 0, p.head_dim_qk);
  }
}

/// d_q^T += K^T d_scores^T.
template <class V>
static void add_to_queries(const BackwardTask<V>& t, const GradTile<V>& tile) {
  using Term = HiddenTerm<V, false>;
  const std::int64_t dim = t.problem().head_dim_qk, size = tile.tile.size;
  const bool finite = all_finite<V>(tile.keys, size, dim);
  alignas(64) typename V::Scalar one[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) one[w] = 1;
  with_vectors<V::kVectors>(
      t.strip().rows.vectors, [&](auto vectors) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(vectors)::value;
        const auto keys = transposed(tile.keys);
        const auto* const d_scores = t.at(t.a.at_d_scores);
        auto* const d_q = t.at(t.a.at_d_q);
        if (finite) {
          add_product<V, Term, kVectors, false>(keys, d_scores, d_q, dim, size, one);
        } else {
          add_product<V, Term, kVectors, true>(keys, d_scores, d_q, dim, size, one);
        }
      });
}

template <class V>
static void write_d_queries(const BackwardTask<V>& t) {
  using T = typename V::Scalar;
  const GradProblem& g = t.a.grad;
  const std::int64_t dim = g.problem.head_dim_qk;
  const Strip<V>& strip = t.strip().rows;
  const auto scale = V::set(static_cast<T>(g.problem.softmax_scale));
  T* const d_q = t.at(t.a.at_d_q);
  for (int v = 0; v < strip.vectors; ++v) {
    for (std::int64_t d = 0; d < dim; ++d) {
      T* const at = d_q + d * V::kWidth + v * V::kLanes;
      V::store(at, V::load(at) * scale);
    }
    char* rows[V::kLanes];
    const int count = lane_rows(g.d_q, strip, v * V::kLanes, rows);
    store_columns<V>(g.d_q.type, rows, count, dim, d_q + v * V::kLanes);
  }
}

template <class V>
static void backward_queries(const void* opaque, std::int64_t task, char* scratch) {
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  const TaskRows rows = task_rows(p, a.grid, task);
  const Sequence s = sequence_of(p, rows.b);
  const std::int64_t end = padding_begin(p, s, rows);
  clear_padding(a.grad, rows, end);
  if (end == rows.begin) return;

  const BackwardTask<V> t{a, s, rows.head_kv, scratch};
  set_grad_rows(t, rows.begin, end - rows.begin);
  auto* const d_q = t.at(a.at_d_q);
  for (std::int64_t x = 0; x < p.head_dim_qk * V::kWidth; ++x) d_q[x] = 0;
  const Strip<V>& strip = t.strip().rows;
  const TileSpan tiles =
      tiles_of(semantics::visible_keys(s.band, strip.i_begin, strip.i_end), a.tile_kv);
  for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
    const GradTile<V> tile = load_grad_tile(t, tile_at(index, a.tile_kv, s.band.len_kv));
    recompute_tile(t, tile);
    differentiate_softcap(t, tile.tile.size);
    add_to_queries(t, tile);
  }
  write_d_queries(t);
}

// ---- d_k, d_v

/// The strip's rows of `view` as [chunks][W][W]: each chunk has W elements of every row, 0 past
/// `dim`. False where one is NaN or infinite.
template <class V>
static bool pack_rows(const View& view, const Strip<V>& strip, std::int64_t dim,
                      typename V::Scalar* packed) {
  bool finite = true;
  for (std::int64_t begin = 0; begin < dim; begin += V::kWidth, packed += V::kWidth * V::kWidth) {
    const std::int64_t size = begin + V::kWidth < dim ? V::kWidth : dim - begin;
    for (int w = 0; w < strip.rows; ++w) {
      const char* row = row_address(view, strip.b, strip.head[w], strip.query[w]);
      auto* const to = packed + w * V::kWidth;
      load_dense_row<V>(view.type, row + begin * element_bytes(view.type), size, to);
      for (std::int64_t x = size; x < V::kWidth; ++x) to[x] = 0;
    }
    const std::int64_t count = strip.rows * V::kWidth;  // as one row
    finite = finite && all_finite<V>({packed, count, 1}, 1, count);
  }
  return finite;
}

/// sums [chunks][tile_kv][W] += weights [size][W] * packed rows: what a tile's keys get from a
/// strip's rows.
template <class V>
static void add_to_keys(const BackwardTask<V>& t, const typename V::Scalar* weights,
                        std::int64_t size, const typename V::Scalar* packed, bool finite,
                        std::int64_t dim, typename V::Scalar* sums) {
  using Term = HiddenTerm<V, true>;
  alignas(64) typename V::Scalar one[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) one[w] = 1;
  const std::int64_t rows = t.strip().rows.rows;
  const ProductInput<typename V::Scalar> a{weights, V::kWidth, 1};
  for (std::int64_t begin = 0; begin < dim; begin += V::kWidth) {
    const std::int64_t left = dim - begin;
    const int used =
        left < V::kWidth ? static_cast<int>((left + V::kLanes - 1) / V::kLanes) : V::kVectors;
    with_vectors<V::kVectors>(
        used, [&](auto vectors) __attribute__((always_inline)) {
          constexpr int kVectors = decltype(vectors)::value;
          if (finite) {
            add_product<V, Term, kVectors, false>(a, packed, sums, size, rows, one);
          } else {
            add_product<V, Term, kVectors, true>(a, packed, sums, size, rows, one);
          }
        });
    packed += V::kWidth * V::kWidth;
    sums += t.a.tile_kv * V::kWidth;
  }
}

/// Rows [begin, begin + rows) of a gradient of K or V: sums * scale for the first `size`, zeros for
/// those past the sequence's length.
template <class V>
static void write_key_rows(const BackwardTask<V>& t, const View& view, Tile tile, std::int64_t rows,
                           std::int64_t dim, typename V::Scalar scale, typename V::Scalar* sums) {
  for (std::int64_t j = 0; j < rows; ++j) {
    char* const row = row_address(view, t.s.b, t.head_kv, tile.begin + j);
    for (std::int64_t begin = 0; begin < dim; begin += V::kWidth) {
      auto* const from = sums + begin * t.a.tile_kv + j * V::kWidth;
      const std::int64_t size = begin + V::kWidth < dim ? V::kWidth : dim - begin;
      for (std::int64_t x = 0; x < size; ++x) from[x] = j < tile.size ? from[x] * scale : 0;
      store_row(view.type, row + begin * element_bytes(view.type), from, 1, size);
    }
  }
}

/// Adds the strip's rows [row, row + count) to d_k and d_v of the tile.
template <class V>
static void add_rows_to_keys(const BackwardTask<V>& t, const GradTile<V>& tile, std::int64_t row,
                             std::int64_t count) {
  const BackwardArgs& a = t.a;
  const Problem& p = t.problem();
  const std::int64_t size = tile.tile.size;
  set_grad_rows(t, row, count);
  const Strip<V>& strip = t.strip().rows;
  recompute_tile(t, tile);
  if (a.grad.d_v.present) {
    auto* const probs = t.at(a.at_probs);
    if (p.dropout.threshold != 0) drop_probs<V>(p, t.s, strip, tile.tile, probs);
    auto* const packed = t.at(a.at_d_out_rows);
    const bool finite = pack_rows<V>(a.grad.d_out, strip, p.head_dim_v, packed);
    add_to_keys(t, probs, size, packed, finite, p.head_dim_v, t.at(a.at_d_v));
  }
  if (a.grad.d_k.present) {
    differentiate_softcap(t, size);
    auto* const packed = t.at(a.at_q_rows);
    const bool finite = pack_rows<V>(p.q, strip, p.head_dim_qk, packed);
    add_to_keys(t, t.at(a.at_d_scores), size, packed, finite, p.head_dim_qk, t.at(a.at_d_k));
  }
}

template <class V>
static void backward_keys(const void* opaque, std::int64_t task, char* scratch) {
  using T = typename V::Scalar;
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const Problem& p = a.grad.problem;
  const std::int64_t tiles = tiles_in(p.seqlen_kv, a.tile_kv), bh = task / tiles;
  const Sequence s = sequence_of(p, bh / p.num_heads_kv);
  const BackwardTask<V> t{a, s, bh % p.num_heads_kv, scratch};

  const Tile all = tile_at(task % tiles, a.tile_kv, p.seqlen_kv);
  const std::int64_t end = semantics::clamp(s.band.len_kv, all.begin, all.begin + all.size);
  const Tile tile{all.begin, end - all.begin};
  const std::int64_t chunks_qk = (p.head_dim_qk + V::kWidth - 1) / V::kWidth;
  const std::int64_t chunks_v = (p.head_dim_v + V::kWidth - 1) / V::kWidth;
  T* const d_k = t.at(a.at_d_k);
  T* const d_v = t.at(a.at_d_v);
  for (std::int64_t x = 0; x < chunks_qk * a.tile_kv * V::kWidth; ++x) d_k[x] = 0;
  for (std::int64_t x = 0; x < chunks_v * a.tile_kv * V::kWidth; ++x) d_v[x] = 0;
  if (tile.size > 0) {
    const GradTile<V> loaded = load_grad_tile(t, tile);
    const std::int64_t rows = s.len_q * p.group_size;
    for (std::int64_t row = 0; row < rows; row += V::kWidth) {
      const std::int64_t count = row + V::kWidth < rows ? V::kWidth : rows - row;
      const std::int64_t i_begin = row / p.group_size, i_last = (row + count - 1) / p.group_size;
      const auto tile_class = class_of(a, s, i_begin, i_last + 1, tile);
      if (tile_class == semantics::TileClass::kEmpty) continue;
      add_rows_to_keys(t, loaded, row, count);
    }
  }
  if (a.grad.d_k.present) {
    const T scale = static_cast<T>(p.softmax_scale);
    write_key_rows<V>(t, a.grad.d_k, tile, all.size, p.head_dim_qk, scale, d_k);
  }
  if (a.grad.d_v.present) {
    write_key_rows<V>(t, a.grad.d_v, tile, all.size, p.head_dim_v, keep_scale<T>(p), d_v);
  }
}

/// The kernels of one instruction set.
template <class V>
constexpr BackwardKernel kBackwardKernel = {
    backward_queries<V>, backward_keys<V>,     backward_bias<V>,          backward_sinks<V>,
    V::kWidth,           sizeof(GradStrip<V>), sizeof(typename V::Scalar)};

}  // namespace regard::cpu

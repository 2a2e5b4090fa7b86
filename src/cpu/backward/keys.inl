// d_k and d_v: what the keys of a tile get from row blocks, with lanes along head_dim. Included
// by the passes.

#pragma once

#include <cstdint>

#include "cpu/backward/tile.inl"

// Rows of head_dim elements lie in chunks of columns, at most kVectors vectors wide and as even as
// can be: (3, 3, 2) of 64 floats, where (3, 3, 1, 1) would take a fifth longer. A chunk is dense:
// [rows][its columns].

namespace regard::cpu {

/// head_dim in whole vectors.
template <class V>
REGARD_KERNEL_FN std::int64_t columns_of(std::int64_t dim) {
  return (dim + V::kLanes - 1) / V::kLanes * V::kLanes;
}

/// Calls f(Count<vectors>, first column) for every chunk.
template <class V, class F>
REGARD_KERNEL_FN void for_chunks(std::int64_t dim, F f) {
  const std::int64_t vectors = columns_of<V>(dim) / V::kLanes;
  const std::int64_t chunks = (vectors + V::kVectors - 1) / V::kVectors;
  std::int64_t begin = 0;
  for (std::int64_t c = 0; c < chunks; ++c) {
    const int size = static_cast<int>(vectors / chunks + (c < vectors % chunks ? 1 : 0));
    with_vectors<V::kVectors>(
        size, [&](auto count) __attribute__((always_inline)) { f(count, begin); });
    begin += size * V::kLanes;
  }
}

/// Rows [rows][dim] of q or d_out, and their scales, which may be absent.
struct GradRows {
  const View& view;
  const View& scales;
  std::int64_t dim;
};

/// The row block's rows as operands in chunks of [W / kPack][columns], 0 past `dim`, times their
/// scales: pairs of bf16 have none. False where an element is NaN or infinite.
template <class V>
static bool pack_rows(const Problem& p, const GradRows& of, const RowBlock<V>& row_block,
                      typename V::Operand* packed) {
  const View& view = of.view;
  const std::int64_t dim = of.dim;
  for_chunks<V>(
      dim, [&](auto vectors, std::int64_t begin) __attribute__((always_inline)) {
        constexpr std::int64_t kColumns = decltype(vectors)::value * V::kLanes;
        const std::int64_t size = begin + kColumns < dim ? kColumns : dim - begin;
        auto* to = packed + begin * (V::kWidth / V::kPack);
        int w = 0;
        for (; w < row_block.rows; w += V::kPack, to += kColumns) {
          const char* rows[V::kPack] = {};  // null past the last
          for (int x = 0; x < V::kPack && w + x < row_block.rows; ++x) {
            rows[x] =
                row_address(view, row_block.b, row_block.head[w + x], row_block.query[w + x]) +
                begin * element_bytes(view.type);
          }
          V::join_rows(view.type, rows, size, to);
          if constexpr (V::kPack == 1) {
            const QueryRow row{row_block.b, row_block.head[w], row_block.query[w]};
            for (std::int64_t x = 0; of.scales.present && x < size; ++x) {
              to[x] *= static_cast<typename V::Scalar>(row_scale(p, of.scales, row, begin + x));
            }
          }
          for (std::int64_t x = size; x < kColumns; ++x) to[x] = {};
        }
        for (; w % V::kRowUnit != 0; w += V::kPack, to += kColumns) {
          for (std::int64_t x = 0; x < kColumns; ++x) to[x] = {};
        }
      });
  bool finite = true;
  for_chunks<V>(
      dim, [&](auto vectors, std::int64_t begin) __attribute__((always_inline)) {
        const std::int64_t count = depth<V>(row_block.rows) * decltype(vectors)::value * V::kLanes;
        const auto* const chunk = packed + begin * (V::kWidth / V::kPack);
        finite = finite && V::is_finite({chunk, count, 1}, 1, count);
      });
  return finite;
}

/// The rows' q and d_out for add_to_keys.
template <class V>
static void pack_grad_rows(const BackwardTask<V>& t) {
  const GradProblem& g = t.a.grad;
  GradRowBlock<V>& row_block = t.row_block();
  const Problem& p = g.problem;
  row_block.q_is_finite =
      pack_rows<V>(p, {p.q, p.scales_q, p.head_dim_qk}, row_block.rows, t.packed(t.a.at_q_rows));
  row_block.d_out_is_finite = pack_rows<V>(p, {g.d_out, g.scales_d_out, p.head_dim_v},
                                           row_block.rows, t.packed(t.a.at_d_out_rows));
}

/// Row blocks [begin, end) of a group that see some of a tile, or that are hidden from it.
template <class V>
struct RowBlockGroup {
  BackwardTask<V> first;
  std::int64_t begin;
  std::int64_t end;

  BackwardTask<V> row_block(std::int64_t x) const {
    return {
        first.a, first.s, first.head_kv, first.scratch, first.rows + x * first.a.row_block_bytes,
        x};
  }
};

/// One of the sums over rows: where a row block has its weights [tile_kv][W] and packed rows, and
/// the sums of all of `keys`.
template <class T>
struct KeySums {
  bool is_k;  // weights are d_scores, else probs
  std::int64_t at_rows;
  T* sums;            // [keys][columns], in chunks
  std::int64_t keys;  // of a chunk
  std::int64_t key;   // the tile's first
};

/// sums of kRows keys, from key j of the tile on, in a chunk of columns.
template <class V, int kRows, int kVectors, bool kSelect>
REGARD_KERNEL_FN void add_key_rows(const RowBlockGroup<V>& group,
                                   const KeySums<typename V::Scalar>& to, std::int64_t j,
                                   std::int64_t column) {
  using Term = typename V::template VisibleTerm<true>;
  using Operand = typename V::Operand;
  constexpr int kColumns = kVectors * V::kLanes;
  constexpr int kDepth = V::kWidth / V::kPack;
  auto* const out = to.sums + column * to.keys + (to.key + j) * kColumns;
  prefetch_sums<V, kRows, kVectors>(out, kColumns);
  typename V::Vec sum[kRows][kVectors] = {};
  for (std::int64_t x = group.begin; x < group.end; ++x) {
    const BackwardTask<V> t = group.row_block(x);
    const SeenKeys seen = t.seen();
    if (j >= seen.begin + seen.size || j + kRows <= seen.begin) continue;  // would add -0
    const auto* const weights =
        reinterpret_cast<const Operand*>(to.is_k ? t.d_scores() : t.probs());
    multiply<V, Term, kRows, kVectors, kSelect, kColumns>({weights + j * kDepth, kDepth, 1},
                                                          t.packed(to.at_rows) + column * kDepth,
                                                          depth<V>(t.row_block().rows.rows), sum);
  }
  REGARD_UNROLL for (int i = 0; i < kRows; ++i) {
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      auto* const at = out + i * kColumns + v * V::kLanes;
      V::store(at, V::load(at) + sum[i][v]);
    }
  }
}

/// sums += weights * rows, for the first `size` keys of the tile.
template <class V, bool kSelect>
static void add_to_keys(const RowBlockGroup<V>& group, const KeySums<typename V::Scalar>& to,
                        std::int64_t size, std::int64_t dim) {
  for_chunks<V>(
      dim, [&](auto vectors, std::int64_t begin) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(vectors)::value;
        if constexpr (V::kHasRegisters && !kSelect) {
          return V::template add_rows<kVectors>(group, to, size, begin);
        }
        std::int64_t j = 0;
        for (; j + kBlockRows<V, kVectors> <= size; j += kBlockRows<V, kVectors>) {
          add_key_rows<V, kBlockRows<V, kVectors>, kVectors, kSelect>(group, to, j, begin);
        }
        for (; j < size; ++j) add_key_rows<V, 1, kVectors, kSelect>(group, to, j, begin);
      });
}

template <class V>
REGARD_KERNEL_FN void add_to_keys(const RowBlockGroup<V>& group,
                                  const KeySums<typename V::Scalar>& to, std::int64_t size,
                                  std::int64_t dim, bool finite) {
  if (finite) {
    add_to_keys<V, false>(group, to, size, dim);
  } else {
    add_to_keys<V, true>(group, to, size, dim);
  }
}

/// Adds what the group's rows give to d_k and d_v of the first `size` keys of a tile; probabilities
/// are dropped, and rounded, on the way, gradients of scores were.
template <class V>
static void add_group_to_keys(const RowBlockGroup<V>& group, Tile tile,
                              KeySums<typename V::Scalar> k, KeySums<typename V::Scalar> v) {
  const BackwardArgs& a = group.first.a;
  const Problem& p = a.grad.problem;
  bool q_is_finite = true, d_out_is_finite = true;
  for (std::int64_t x = group.begin; x < group.end; ++x) {
    const BackwardTask<V> t = group.row_block(x);
    q_is_finite = q_is_finite && t.row_block().q_is_finite;
    d_out_is_finite = d_out_is_finite && t.row_block().d_out_is_finite;
    if (!a.grad.d_v.present || t.seen().size == 0) continue;
    if (p.dropout.threshold != 0) drop_probs<V>(p, t.s, t.row_block().rows, tile, t.probs());
    V::round_weights(t.row_block().rows, tile.size, t.probs(), nullptr);
  }
  if (a.grad.d_v.present) add_to_keys<V>(group, v, tile.size, p.head_dim_v, d_out_is_finite);
  if (a.grad.d_k.present) add_to_keys<V>(group, k, tile.size, p.head_dim_qk, q_is_finite);
}

/// Clears rows [begin, begin + size) of sums [keys][columns].
template <class V>
static void clear_key_sums(typename V::Scalar* sums, std::int64_t keys, std::int64_t begin,
                           std::int64_t size, std::int64_t dim) {
  for_chunks<V>(
      dim, [&](auto vectors, std::int64_t column) __attribute__((always_inline)) {
        constexpr int kColumns = decltype(vectors)::value * V::kLanes;
        auto* const at = sums + column * keys + begin * kColumns;
        __builtin_memset(at, 0, static_cast<std::size_t>(size * kColumns) * sizeof(*at));
      });
}

/// The first `size` keys of `to` += those of `from`.
template <class V>
static void add_key_sums(const KeySums<typename V::Scalar>& to,
                         const KeySums<typename V::Scalar>& from, std::int64_t size,
                         std::int64_t dim) {
  for_chunks<V>(
      dim, [&](auto vectors, std::int64_t column) __attribute__((always_inline)) {
        constexpr int kColumns = decltype(vectors)::value * V::kLanes;
        auto* const sums = to.sums + column * to.keys + to.key * kColumns;
        const auto* const more = from.sums + column * from.keys + from.key * kColumns;
        for (std::int64_t x = 0; x < size * kColumns; x += V::kLanes) {
          V::store(sums + x, V::load(sums + x) + V::load(more + x));
        }
      });
}

/// A gradient of K or V: where it goes, and what its sums are multiplied by.
struct KeyGradient {
  GradientOf of;
  const View& view;
  std::int64_t dim;
  double scale;
};

/// The largest magnitude of the first `size` keys of `from`.
template <class V>
static void note_key_amax(const GradProblem& g, const KeyGradient& to, std::int64_t size,
                          const KeySums<typename V::Scalar>& from) {
  if (!g.gradient_amax.present) return;
  const auto by = static_cast<float>(to.scale);
  std::uint32_t max = 0;
  for_chunks<V>(
      to.dim, [&](auto vectors, std::int64_t column) __attribute__((always_inline)) {
        constexpr int kColumns = decltype(vectors)::value * V::kLanes;
        const auto* const sums = from.sums + column * from.keys + from.key * kColumns;
        for (std::int64_t x = 0; x < size * kColumns; ++x) {  // past dim they are 0
          max = larger_magnitude(max, static_cast<float>(sums[x]) * by);
        }
      });
  raise_amax(g, to.of, f32_of(max));
}

/// Rows of `keys` of a gradient of K or V: their sums times its scales. Past the sequence's length
/// they are zeros.
template <class V>
static void write_key_rows(const BackwardTask<V>& t, const KeyGradient& to,
                           semantics::KeyRange keys, const KeySums<typename V::Scalar>& from) {
  const View& view = to.view;
  const std::int64_t dim = to.dim;
  note_key_amax<V>(t.a.grad, to, keys.hi - keys.lo, from);
  const auto scale = static_cast<typename V::Scalar>(to.scale * gradient_scale(t.a.grad, to.of));
  const std::int64_t bytes = element_bytes(view.type);
  for (std::int64_t j = keys.lo; j < keys.hi; ++j) {
    char* const row = row_address(view, t.s.b, t.head_kv, j);
    for_chunks<V>(
        dim, [&](auto vectors, std::int64_t column) __attribute__((always_inline)) {
          constexpr int kColumns = decltype(vectors)::value * V::kLanes;
          const auto* const sum =
              from.sums + column * from.keys + (from.key + j - keys.lo) * kColumns;
          for (int x = 0; x < kColumns && column + x < dim; x += V::kLanes) {
            const auto value = V::load(sum + x) * V::set(scale);
            char* const at = row + (column + x) * bytes;
            if (column + x + V::kLanes <= dim) {
              store_vector<V>(view.type, at, value);
            } else {
              typename V::Scalar tail[V::kLanes];
              V::store(tail, value);
              store_row(view.type, at, tail, 1, dim - column - x);
            }
          }
        });
  }
}

/// Zeros for keys past their sequence's length.
REGARD_KERNEL_FN void clear_key_gradients(const GradProblem& g, std::int64_t b,
                                          std::int64_t head_kv, semantics::KeyRange keys) {
  const Problem& p = g.problem;
  for (std::int64_t j = keys.lo; j < keys.hi; ++j) {
    if (g.d_k.present) clear_row(g.d_k.type, row_address(g.d_k, b, head_kv, j), p.head_dim_qk);
    if (g.d_v.present) clear_row(g.d_v.type, row_address(g.d_v, b, head_kv, j), p.head_dim_v);
  }
}

/// Gradients of K and V from their sums, where they are wanted.
template <class V>
static void write_key_gradients(const BackwardTask<V>& t, semantics::KeyRange keys,
                                const KeySums<typename V::Scalar>& k,
                                const KeySums<typename V::Scalar>& v) {
  using T = typename V::Scalar;
  const GradProblem& g = t.a.grad;
  const Problem& p = g.problem;
  if (g.d_k.present) {
    const double scale = p.softmax_scale * descale_of(p.descale_q, t.s.b, t.head_kv);
    write_key_rows<V>(t, {GradientOf::kK, g.d_k, p.head_dim_qk, scale}, keys, k);
  }
  if (g.d_v.present) {
    const double scale = keep_scale<T>(p) * descale_of(g.descale_d_out, t.s.b, t.head_kv);
    write_key_rows<V>(t, {GradientOf::kV, g.d_v, p.head_dim_v, scale}, keys, v);
  }
}

}  // namespace regard::cpu

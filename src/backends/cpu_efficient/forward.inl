// One task of EFFICIENT's forward: up to `strips` strips of rows go through the tiles of K and V
// together, each with its online softmax. Included by isa_<isa>.cc.

#include <cstdint>

#include "backends/cpu_efficient/kernel.h"
#include "cpu/softmax.h"
#include "cpu/strip.h"

namespace regard::efficient {

using cpu::Problem;
using cpu::ProductInput;
using cpu::Sequence;
using cpu::Strip;
using cpu::Tile;
using semantics::TileClass;

template <class V>
struct TaskScratch {
  using T = typename V::Scalar;
  Strip<V>* strips;
  T* q_t;
  T* out_t;
  T* scores;
  T* keys;
  T* values;
  T* row;
};

template <class V>
static TaskScratch<V> carve(const ForwardArgs& a, char* scratch) {
  using T = typename V::Scalar;
  return {reinterpret_cast<Strip<V>*>(scratch + a.at_strips),
          reinterpret_cast<T*>(scratch + a.at_q),
          reinterpret_cast<T*>(scratch + a.at_out),
          reinterpret_cast<T*>(scratch + a.at_scores),
          reinterpret_cast<T*>(scratch + a.at_keys),
          reinterpret_cast<T*>(scratch + a.at_values),
          reinterpret_cast<T*>(scratch + a.at_row)};
}

/// A tile of K and V, each read (and converted) when the first strip needs it.
template <class V>
struct LoadedTile {
  using T = typename V::Scalar;
  Tile tile{};
  ProductInput<T> keys{};
  ProductInput<T> values{};
  bool has_keys = false;
  bool has_values = false;
  bool finite_known = false;
  bool finite = true;
};

/// A task's rows, and where it works.
template <class V>
struct Task {
  const ForwardArgs& a;
  const Sequence& s;
  std::int64_t head_kv;
  std::int64_t strips;
  TaskScratch<V> at;
};

template <class V>
static void read_values(const Task<V>& t, LoadedTile<V>* loaded, TileClass tile_class) {
  const Problem& p = t.a.problem;
  if (!loaded->has_values) {
    loaded->values = cpu::load_tile(p.v, t.s.b, t.head_kv, loaded->tile, p.head_dim_v, t.at.values);
    loaded->has_values = true;
  }
  if (tile_class == TileClass::kPartial && !loaded->finite_known) {
    loaded->finite = cpu::all_finite<V>(loaded->values, loaded->tile.size, p.head_dim_v);
    loaded->finite_known = true;
  }
}

/// One strip meets one tile.
template <class V>
static void fold_tile(const Task<V>& t, std::int64_t index, TileClass tile_class,
                      LoadedTile<V>* loaded) {
  using T = typename V::Scalar;
  const Problem& p = t.a.problem;
  const Tile tile = loaded->tile;
  Strip<V>& strip = t.at.strips[index];
  T* const scores = t.at.scores;
  if (!loaded->has_keys) {
    loaded->keys = cpu::load_tile(p.k, t.s.b, t.head_kv, tile, p.head_dim_qk, t.at.keys);
    loaded->has_keys = true;
  }
  cpu::product<V>(loaded->keys, t.at.q_t + index * p.head_dim_qk * V::kWidth, scores, tile.size,
                  p.head_dim_qk);
  cpu::scale_scores<V>(p, tile.size, scores);
  cpu::edit_scores<V>(p, strip, tile, tile_class, scores, t.at.row);

  alignas(64) T old_max[V::kWidth];
  alignas(64) T carry[V::kWidth];
  for (int w = 0; w < V::kWidth; ++w) old_max[w] = strip.row_max[w];
  cpu::fold_max<V>(tile.size, scores, strip.row_max);
  cpu::rescale<V>(old_max, &strip, carry);
  cpu::exponentiate<V>(tile.size, scores, &strip);
  if (p.dropout.threshold != 0) cpu::drop_probs<V>(p, t.s, strip, tile, scores);

  read_values(t, loaded, tile_class);
  const bool select = tile_class == TileClass::kPartial && !loaded->finite;
  cpu::product_onto<V>(cpu::transposed(loaded->values), scores,
                       t.at.out_t + index * p.head_dim_v * V::kWidth, p.head_dim_v, tile.size,
                       carry, select);
}

template <class V>
static void start_strips(const Task<V>& t, std::int64_t row_begin, std::int64_t row_end) {
  const Problem& p = t.a.problem;
  for (std::int64_t x = 0; x < t.strips; ++x) {
    Strip<V>* strip = t.at.strips + x;
    const std::int64_t begin = row_begin + x * V::kWidth;
    const std::int64_t rows = begin + V::kWidth < row_end ? V::kWidth : row_end - begin;
    cpu::set_rows<V>(p, t.s, t.head_kv, begin, rows, strip);
    cpu::pack_queries<V>(p, *strip, t.at.row, t.at.q_t + x * p.head_dim_qk * V::kWidth);
    typename V::Scalar* out_t = t.at.out_t + x * p.head_dim_v * V::kWidth;
    for (std::int64_t d = 0; d < p.head_dim_v * V::kWidth; ++d) out_t[d] = 0;
  }
}

template <class V>
static void forward(const void* opaque, std::int64_t task, char* scratch) {
  const ForwardArgs& a = *static_cast<const ForwardArgs*>(opaque);
  const Problem& p = a.problem;
  const cpu::TaskRows rows = cpu::task_rows(p, a.grid, task);
  const Sequence s = cpu::sequence_of(p, rows.b);
  const std::int64_t end = cpu::padding_begin(p, s, rows);
  cpu::write_padding<V>(p, rows, end);
  if (end == rows.begin) return;

  const std::int64_t strips = (end - rows.begin + V::kWidth - 1) / V::kWidth;
  const Task<V> t{a, s, rows.head_kv, strips, carve<V>(a, scratch)};
  start_strips(t, rows.begin, end);

  const auto keys =
      semantics::visible_keys(s.band, t.at.strips[0].i_begin, t.at.strips[strips - 1].i_end);
  const cpu::TileSpan tiles = cpu::tiles_of(keys, a.tile_kv);
  for (std::int64_t index = tiles.begin; index < tiles.end; ++index) {
    LoadedTile<V> loaded{};
    loaded.tile = cpu::tile_at(index, a.tile_kv, s.band.len_kv);
    const std::int64_t j_begin = loaded.tile.begin;
    for (std::int64_t x = 0; x < strips; ++x) {
      const Strip<V>& strip = t.at.strips[x];
      const TileClass tile_class =
          semantics::classify_tile(s.band, strip.i_begin, strip.i_end, j_begin,
                                   j_begin + loaded.tile.size, cpu::is_opaque(p));
      if (tile_class != TileClass::kEmpty) fold_tile(t, x, tile_class, &loaded);
    }
  }
  for (std::int64_t x = 0; x < strips; ++x) {
    cpu::write_rows<V>(p, t.at.strips[x], t.at.out_t + x * p.head_dim_v * V::kWidth);
  }
}

}  // namespace regard::efficient

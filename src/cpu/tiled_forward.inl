// One task of a tiled forward: its strips of rows go through the tiles of K and V together, each
// with its online softmax. Tiles is how tiles are read and multiplied (float_tiles.inl). Included
// by a backend's isa_<isa>.cc.

#include <cstdint>

#include "cpu/edit_scores.h"
#include "cpu/softmax.h"
#include "cpu/strip.h"
#include "cpu/tiled.h"

namespace regard::cpu {

/// A task's rows, and where it works.
template <class Tiles>
struct TiledTask {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const TiledArgs& a;
  const Sequence& s;
  std::int64_t head_kv;
  std::int64_t count;  // strips in use
  Strip<V>* strips;
  typename Tiles::Query* q_t;
  T* out_t;
  T* scores;
  T* row;

  std::int64_t query_size() const {
    return (a.problem.head_dim_qk + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit * V::kWidth;
  }
  std::int64_t out_size() const {
    return (a.problem.head_dim_v + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit * V::kWidth;
  }
};

/// The keys of `tile` that a strip computes: from the first that it may see to the last, in whole
/// blocks of 8. What it leaves out would add -0.
template <class V>
REGARD_KERNEL_FN Tile visible_part(const Strip<V>& strip, Tile tile) {
  const semantics::KeyRange keys = reach(strip);
  const std::int64_t end = tile.begin + tile.size;
  const std::int64_t lo = semantics::clamp(keys.lo / 8 * 8, tile.begin, end);
  const std::int64_t hi = semantics::clamp(keys.hi, tile.begin, end);
  const std::int64_t rounded = tile.begin + (hi - tile.begin + 7) / 8 * 8;
  return {lo, (rounded < end ? rounded : end) - lo};
}

/// One strip meets one tile.
template <class Tiles, int kVectors>
static void fold_tile(const TiledTask<Tiles>& t, std::int64_t index, bool partial, Tiles* tiles) {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const Problem& p = t.a.problem;
  Strip<V>& strip = t.strips[index];
  const Tile part = partial ? visible_part(strip, tiles->tile()) : tiles->tile();
  if (part.size <= 0) return;

  alignas(64) T max[V::kWidth];
  alignas(64) T carry[V::kWidth];
  for (int v = 0; v < V::kVectors; ++v) V::store(max + v * V::kLanes, minus_infinity<V>());
  Tiles::template scores<kVectors>(tiles, t.q_t + index * t.query_size(), part, t.scores, max);
  if (partial || p.scales_first) {
    edit_scores<V>(p, strip, part, partial, t.scores, t.row);
    for (int v = 0; v < V::kVectors; ++v) V::store(max + v * V::kLanes, minus_infinity<V>());
    fold_max<V>(strip.vectors, part.size, t.scores, max);
  }
  raise_max<V>(p, max, &strip, carry);
  if (partial) {
    exponentiate<V, true>(p, part.size, t.scores, &strip);
  } else {
    exponentiate<V, false>(p, part.size, t.scores, &strip);
  }
  if (p.dropout.threshold != 0) drop_probs<V>(p, t.s, strip, part, t.scores);
  Tiles::template accumulate<kVectors>(tiles, t.scores, part, partial, carry,
                                       t.out_t + index * t.out_size());
}

template <class Tiles>
static void start_strips(const TiledTask<Tiles>& t, std::int64_t row_begin, std::int64_t row_end) {
  using V = typename Tiles::Vocabulary;
  for (std::int64_t x = 0; x < t.count; ++x) {
    Strip<V>* strip = t.strips + x;
    const std::int64_t begin = row_begin + x * V::kWidth;
    const std::int64_t rows = begin + V::kWidth < row_end ? V::kWidth : row_end - begin;
    set_rows<V>(t.a.problem, t.s, t.head_kv, begin, rows, strip);
    Tiles::pack(t.a.problem, *strip, t.q_t + x * t.query_size());
    typename V::Scalar* const out_t = t.out_t + x * t.out_size();
    for (std::int64_t y = 0; y < t.out_size(); y += V::kWidth) {
      for (int v = 0; v < strip->vectors; ++v) V::store(out_t + y + v * V::kLanes, V::set(0));
    }
  }
}

template <class Tiles>
static void tiled_forward(const void* opaque, std::int64_t task, char* scratch) {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const TiledArgs& a = *static_cast<const TiledArgs*>(opaque);
  const Problem& p = a.problem;
  const TaskRows rows = task_rows(p, a.grid, task);
  const Sequence s = sequence_of(p, rows.b);
  const std::int64_t end = padding_begin(p, s, rows);
  write_padding<V>(p, rows, end);
  if (end == rows.begin) return;

  const TiledTask<Tiles> t{a,
                           s,
                           rows.head_kv,
                           (end - rows.begin + V::kWidth - 1) / V::kWidth,
                           reinterpret_cast<Strip<V>*>(scratch + a.at_strips),
                           reinterpret_cast<typename Tiles::Query*>(scratch + a.at_q),
                           reinterpret_cast<T*>(scratch + a.at_out),
                           reinterpret_cast<T*>(scratch + a.at_scores),
                           reinterpret_cast<T*>(scratch + a.at_row)};
  start_strips(t, rows.begin, end);
  const auto keys =
      semantics::visible_keys(s.band, t.strips[0].i_begin, t.strips[t.count - 1].i_end);
  const TileSpan span = tiles_of(keys, a.tile_kv);
  Tiles tiles(p, rows.b, rows.head_kv, scratch + a.at_keys, scratch + a.at_values);
  for (std::int64_t index = span.begin; index < span.end; ++index) {
    tiles.start(tile_at(index, a.tile_kv, s.band.len_kv));
    const std::int64_t j_begin = tiles.tile().begin;
    const std::int64_t j_end = j_begin + tiles.tile().size;
    for (std::int64_t x = 0; x < t.count; ++x) {
      const Strip<V>& strip = t.strips[x];
      const auto seen = semantics::classify_tile(s.band, strip.i_begin, strip.i_end, j_begin, j_end,
                                                 is_opaque(p));
      if (seen == semantics::TileClass::kEmpty) continue;
      const bool partial = seen == semantics::TileClass::kPartial;
      with_vectors<V::kVectors>(
          strip.vectors, [&](auto vectors) __attribute__((always_inline)) {
            fold_tile<Tiles, decltype(vectors)::value>(t, x, partial, &tiles);
          });
    }
  }
  for (std::int64_t x = 0; x < t.count; ++x) {
    write_rows<V>(p, t.strips[x], t.out_t + x * t.out_size());
  }
}

}  // namespace regard::cpu

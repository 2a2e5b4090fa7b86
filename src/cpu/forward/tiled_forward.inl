// Row blocks go through the tiles of K and V together, each with its online softmax. Tiles
// is how tiles are read and multiplied (float_tiles.inl, bf16_tiles.inl, decode_tiles.inl).
// Included by a backend's isa_<isa>.cc.

#include <cstdint>

#include "cpu/forward/edit_scores.h"
#include "cpu/forward/narrow_weights.h"
#include "cpu/forward/output_rows.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/tiled.h"
#include "cpu/forward/visible_keys.h"
#include "cpu/simd/product.h"
#include "cpu/split.h"

namespace regard::cpu {

/// Rows [begin, end) of each of some kv heads, and what the worker computes after them.
struct HeadRows {
  std::int64_t head_kv;
  std::int64_t heads;
  std::int64_t begin;
  std::int64_t end;
  TaskRows next{};
};

/// Rows of one sequence, those of each kv head in row blocks of their own, and where they are
/// computed.
template <class Tiles>
struct RowBlockSet {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const TiledArgs& a;
  const Sequence& s;
  std::int64_t head_kv;  // the first
  std::int64_t heads;
  std::int64_t per_head;  // row blocks
  TaskOrder order;        // of the first head
  char* scratch;
  bool has_output_rows = false;  // outs are rows, which the last tile writes (output_rows.h)

  std::int64_t count() const { return heads * per_head; }

  RowBlock<V>* row_blocks() const {
    return reinterpret_cast<RowBlock<V>*>(scratch + a.at_row_blocks);
  }
  typename Tiles::Query* query(std::int64_t x) const {
    auto* const first = reinterpret_cast<typename Tiles::Query*>(scratch + a.at_q);
    return first + x * Tiles::query_size(a.problem);
  }
  T* scores() const { return reinterpret_cast<T*>(scratch + a.at_scores); }
  EditScratch<T> edit_scratch() const {
    return {reinterpret_cast<T*>(scratch + a.at_row), scratch + a.at_registers, a.functions};
  }
};

/// What is known of the rows, and their packed queries.
template <class Tiles>
static RowBlockSet<Tiles> make_row_blocks(const TiledArgs& a, const Sequence& s,
                                          const HeadRows& rows, char* scratch) {
  using V = typename Tiles::Vocabulary;
  const std::int64_t vectors = (rows.end - rows.begin + V::kLanes - 1) / V::kLanes;
  const std::int64_t per_head = (vectors + V::kVectors - 1) / V::kVectors;
  const RowBlockSet<Tiles> set{
      a,          s,        rows.head_kv,
      rows.heads, per_head, {{s.b, rows.head_kv, rows.begin, rows.end}, rows.next, per_head},
      scratch};
  std::int64_t x = 0;
  for (std::int64_t head = 0; head < rows.heads; ++head) {
    std::int64_t begin = rows.begin;
    for (std::int64_t i = 0; i < per_head; ++i, ++x) {
      // Row blocks alike: one of one vector has 0.9 of the rate of two or three.
      const std::int64_t row =
          rows.begin +
          (i + 1 < per_head ? share_begin(vectors, per_head, i + 1) : vectors) * V::kLanes;
      const std::int64_t end = row < rows.end ? row : rows.end;
      set_rows<V>(a.problem, s, rows.head_kv + head, begin, end - begin, set.row_blocks() + x);
      Tiles::pack(a.problem, set.row_blocks()[x], set.query(x));
      begin = end;
    }
  }
  return set;
}

/// The keys that any of the rows may see by arithmetic.
template <class Tiles>
static semantics::KeyRange reach(const RowBlockSet<Tiles>& set) {
  const auto* const row_blocks = set.row_blocks();
  return semantics::visible_keys(set.s.band, row_blocks[0].i_begin,
                                 row_blocks[set.per_head - 1].i_end);
}

/// Whether all keys of the rows are one tile, which begins where they do: a narrow window of a few
/// keys would lie in two or three tiles of the grid, each a pass of its own. A function of the
/// call's window and the sequence's own lengths.
template <class Tiles>
static bool is_one_tile(const RowBlockSet<Tiles>& set) {
  if (!Tiles::kTakesRanges || !set.a.has_narrow_window) return false;
  return num_splits(set.s.len_q * set.a.problem.group_size, set.s.band.len_kv) == 1;
}

/// Scores of `visible` become probabilities in the form that Tiles multiplies.
template <class Tiles, int kVectors, bool kMasked, bool kScales = false>
static void exponentiate_scores(const RowBlockSet<Tiles>& set, Tile visible,
                                typename RowBlockSet<Tiles>::T* scores,
                                RowBlock<typename Tiles::Vocabulary>* row_block) {
  using V = typename Tiles::Vocabulary;
  using Probs = typename Tiles::Probs;
  const Problem& p = set.a.problem;
  if (p.dropout.threshold == 0 && !rounds_probs(p)) {
    const std::int64_t stored = visible.size / kExp2Vectors * kExp2Vectors;
    exponentiate<V, kMasked, Probs, kScales>(p, visible.size, scores, row_block);
    Probs::template finish<kVectors>(scores, stored, visible.size);
  } else {
    exponentiate_rounded<V, kMasked>(p, visible.size, scores, row_block);
    if (p.dropout.threshold != 0) drop_probs<V>(p, set.s, *row_block, visible, scores);
    Probs::template finish<kVectors>(scores, 0, visible.size);
  }
}

/// The keys that each vector of rows computes, in whole blocks of keys, where a causal mask or a
/// window alone decides which those are. False where each computes all that are visible to any.
template <class V, int kVectors>
static bool ranges_of_vectors(const Problem& p, const RowBlock<V>& row_block, Tile visible,
                              StepRanges<kVectors>* keys) {
  const bool has_masks =
      p.mask.present || p.tree.present || p.segments_q.present || p.masks_by_function;
  const bool has_edits = p.caps_scores || p.slopes.present || p.bias.present || p.edits_by_function;
  if (has_masks || has_edits || p.dropout.threshold != 0 || rounds_probs(p)) return false;
  if (p.prescale_scores && !scales_in_softmax<V>(p)) return false;
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t lo = keys_in_tile(row_block, v * V::kLanes, visible).lo;
    const std::int64_t hi = keys_in_tile(row_block, (v + 1) * V::kLanes - 1, visible).hi;
    const std::int64_t end = (hi + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    keys->begin[v] = lo / kKeyBlock * kKeyBlock;
    keys->end[v] = end < visible.size ? end : visible.size;
    if (keys->begin[v] > keys->end[0]) return false;
    if (v > 0 && (keys->begin[v] < keys->begin[v - 1] || keys->end[v] < keys->end[v - 1])) {
      return false;
    }
  }
  return keys->begin[0] < keys->begin[kVectors - 1] || keys->end[0] < keys->end[kVectors - 1];
}

/// Where a tile adds to a row block whose outs are rows, which the last one that it sees writes.
template <class Tiles>
static void start_output_rows(const RowBlockSet<Tiles>& set, std::int64_t x, Tile tile,
                              const typename RowBlockSet<Tiles>::T* rescale,
                              typename RowBlockSet<Tiles>::T* out,
                              OutputRows<typename Tiles::Vocabulary>* to) {
  auto& row_block = set.row_blocks()[x];
  const bool is_last = tile.begin + tile.size >= reach(row_block).hi;
  find_output_rows(set.a.problem, row_block, is_last, out, to);
  to->streams = is_last && set.a.streams_out;
  to->rescale = rescale;
  row_block.has_out = true;
  row_block.is_written = is_last;
}

/// The steps of a product with values in which each kOutputRows rows see keys.
template <class Tiles, class V>
static void steps_of_rows(const LaneKeys<V>& lanes, std::int64_t rows, semantics::KeyRange* steps) {
  constexpr std::int64_t kKeys = Tiles::kStepKeys;
  for (std::int64_t w = 0; w < rows; w += kOutputRows) {
    const std::int64_t last = (w + kOutputRows < rows ? w + kOutputRows : rows) - 1;
    steps[w / kOutputRows] = {static_cast<std::int64_t>(lanes.lo[w]) / kKeys,
                              (static_cast<std::int64_t>(lanes.hi[last]) + kKeys - 1) / kKeys};
  }
}

/// Of the keys of each vector of rows, whole blocks that all of its rows see.
template <class V, int kVectors>
REGARD_KERNEL_FN StepRanges<kVectors> ranges_of_all(const LaneKeys<V>& lanes) {
  StepRanges<kVectors> all;
  for (int v = 0; v < kVectors; ++v) {
    const auto lo = static_cast<std::int64_t>(lanes.lo[(v + 1) * V::kLanes - 1]);
    all.begin[v] = (lo + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
    all.end[v] = static_cast<std::int64_t>(lanes.hi[v * V::kLanes]) / kKeyBlock * kKeyBlock;
  }
  return all;
}

/// Scores of the keys that each vector of rows computes, hidden; max [W] grows.
template <class Tiles, int kVectors>
static void score_ranges(const RowBlockSet<Tiles>& set, std::int64_t x, Tile visible,
                         const StepRanges<kVectors>& keys,
                         const LaneKeys<typename Tiles::Vocabulary>& lanes, Tiles* tiles,
                         typename RowBlockSet<Tiles>::T* max) {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const RowBlock<V>& row_block = set.row_blocks()[x];
  const StepRanges<kVectors> all = ranges_of_all<V, kVectors>(lanes);
  T* const scores = set.scores();
  const auto score = [&](auto first, auto end, std::int64_t from, std::int64_t to) {
    constexpr int kFirst = decltype(first)::value, kEnd = decltype(end)::value;
    constexpr int kAt = kFirst * V::kLanes;
    if (from >= to) return;
    alignas(64) T of_all[V::kWidth];  // what is hidden counts there
    for (int v = kFirst; v < kEnd; ++v) V::store(of_all + v * V::kLanes, minus_infinity<V>());
    Tiles::template scores<kEnd - kFirst>(tiles, row_block, set.query(x) + kAt,
                                          Tile{visible.begin + from, to - from},
                                          scores + from * V::kWidth + kAt, of_all + kAt);
    for (int v = kFirst; v < kEnd; ++v) {
      const int at = v * V::kLanes;
      const bool sees_all = all.begin[v] <= from && to <= all.end[v];
      if (sees_all) {
        V::store(max + at, V::max(V::load(of_all + at), V::load(max + at)));
        continue;
      }
      hide_outside(lanes, v, from, to, scores);
      accumulate_max_of<V>(from, to, scores + at, max + at);
    }
  };
  for_stages(
      keys, [&](auto first, auto end, std::int64_t from, std::int64_t to)
                __attribute__((always_inline)) {
                  if constexpr (decltype(end)::value - decltype(first)::value < kVectors) {
                    score(first, end, from, to);
                  } else {  // the first vector's last keys, and the last one's first, are hidden
                    const std::int64_t lo = semantics::clamp(all.begin[kVectors - 1], from, to);
                    const std::int64_t hi = semantics::clamp(all.end[0], lo, to);
                    score(first, end, from, lo);
                    score(first, end, lo, hi);
                    score(first, end, hi, to);
                  }
                });
}

/// Processes what each vector of rows sees of a tile whose values are finite.
template <class Tiles, int kVectors>
static void process_ranges(const RowBlockSet<Tiles>& set, std::int64_t x, Tile visible,
                           const StepRanges<kVectors>& keys, Tiles* tiles,
                           typename RowBlockSet<Tiles>::T* out) {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  using Probs = typename Tiles::Probs;
  const Problem& p = set.a.problem;
  RowBlock<V>& row_block = set.row_blocks()[x];
  T* const scores = set.scores();
  alignas(64) T max[V::kWidth];
  alignas(64) T rescale[V::kWidth];
  for (int v = 0; v < kVectors; ++v) V::store(max + v * V::kLanes, minus_infinity<V>());
  LaneKeys<V> lanes;
  find_lane_keys(row_block, visible, &lanes);
  score_ranges<Tiles, kVectors>(set, x, visible, keys, lanes, tiles, max);
  if (p.prescale_scores) scale_max<V>(p, kVectors, max);
  update_max<V>(p, kVectors, max, &row_block.state, rescale);
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * V::kLanes;
    const std::int64_t size = keys.end[v] - keys.begin[v];
    if (p.prescale_scores) {
      exponentiate_keys<V, false, Probs, true>(p, keys.begin[v], keys.end[v], at, scores,
                                               &row_block.state);
    } else {
      exponentiate_keys<V, false, Probs>(p, keys.begin[v], keys.end[v], at, scores,
                                         &row_block.state);
    }
    const std::int64_t stored = keys.begin[v] + size / kExp2Vectors * kExp2Vectors;
    Probs::template finish<1>(scores + at, stored, keys.end[v]);
  }
  if (set.has_output_rows) {
    OutputRows<V> to;
    start_output_rows(set, x, tiles->tile(), rescale, out, &to);
    semantics::KeyRange steps[(V::kWidth + kOutputRows - 1) / kOutputRows];
    steps_of_rows<Tiles>(lanes, row_block.rows, steps);
    Tiles::add_rows(tiles, to, row_block.rows, scores, visible, steps, false);
    return;
  }
  const T* const keep = row_block.has_out ? rescale : nullptr;
  Tiles::template accumulate_ranges<kVectors>(tiles, scores, visible, keys, keep, out);
  row_block.has_out = true;
}

/// Processes the keys of a tile that row block x sees.
template <class Tiles, int kVectors>
static void process_tile(const RowBlockSet<Tiles>& set, std::int64_t x, VisibleKeys seen,
                         Tiles* tiles, typename RowBlockSet<Tiles>::T* out) {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const Problem& p = set.a.problem;
  RowBlock<V>& row_block = set.row_blocks()[x];
  const Tile visible = seen.range;
  bool partial = !seen.all;
  if constexpr (requires { Tiles::is_whole(p, seen); }) {
    if (Tiles::is_whole(p, seen)) {
      return Tiles::process_whole(tiles, &row_block, set.query(x), visible, set.scores(), out);
    }
  }
  if constexpr (Tiles::kTakesRanges && kVectors > 1) {
    StepRanges<kVectors> keys;
    if (partial && ranges_of_vectors<V, kVectors>(p, row_block, visible, &keys) &&
        tiles->are_values_finite()) {
      return process_ranges<Tiles, kVectors>(set, x, visible, keys, tiles, out);
    }
  }

  alignas(64) T max[V::kWidth];
  alignas(64) T rescale[V::kWidth];
  for (int v = 0; v < kVectors; ++v) V::store(max + v * V::kLanes, minus_infinity<V>());
  T* const scores = set.scores();
  Tiles::template scores<kVectors>(tiles, row_block, set.query(x), visible, scores, max);
  const bool scales = !partial && scales_in_softmax<V>(p);
  if (scales) {
    scale_max<V>(p, kVectors, max);
  } else if (partial || p.prescale_scores) {
    partial = edit_scores_with_max<V>(p, row_block, seen, scores, set.edit_scratch(), max);
  }
  update_max<V>(p, kVectors, max, &row_block.state, rescale);
  const bool selects = partial && !tiles->are_values_finite();
  if (scales) {
    exponentiate_scores<Tiles, kVectors, false, true>(set, visible, scores, &row_block);
  } else if (selects) {
    exponentiate_scores<Tiles, kVectors, true>(set, visible, scores, &row_block);
  } else {
    exponentiate_scores<Tiles, kVectors, false>(set, visible, scores, &row_block);
  }
  if constexpr (Tiles::kAddsRows) {
    if (set.has_output_rows) {
      OutputRows<V> to;
      start_output_rows(set, x, tiles->tile(), rescale, out, &to);
      return Tiles::add_rows(tiles, to, row_block.rows, scores, visible, nullptr, selects);
    }
  }
  const T* const keep = Tiles::kStartsOut && !row_block.has_out ? nullptr : rescale;
  Tiles::template accumulate<kVectors>(tiles, row_block, scores, visible, partial, keep, out);
  row_block.has_out = true;
}

/// Processes one tile for row block x, if it sees any of it.
template <class Tiles>
static void process_visible(const RowBlockSet<Tiles>& set, std::int64_t x, Tiles* tiles,
                            typename RowBlockSet<Tiles>::T* out) {
  using V = typename Tiles::Vocabulary;
  const RowBlock<V>& row_block = set.row_blocks()[x];
  VisibleKeys seen = visible_keys_of(set.a.problem, set.s, row_block, tiles->tile());
  if (seen.range.size == 0) return;
  const std::int64_t lead = (seen.range.begin - tiles->tile().begin) % Tiles::kKeyGroup;
  if (lead > 0) seen = {{seen.range.begin - lead, seen.range.size + lead}, false, false};
  with_vectors<V::kVectors>(
      row_block.vectors, [&](auto vectors) __attribute__((always_inline)) {
        process_tile<Tiles, decltype(vectors)::value>(set, x, seen, tiles, out);
      });
}

/// Processes `keys` for all row blocks; outs are those of row block 0, 1, ..., Tiles::Out::size
/// apart. All heads process a tile's keys before the next ones: where heads of a key are
/// neighbours, memory is read in order.
template <class Tiles>
static void process_keys(const RowBlockSet<Tiles>& set, semantics::KeyRange keys,
                         typename RowBlockSet<Tiles>::T* outs) {
  const TiledArgs& a = set.a;
  const std::int64_t reach_end = reach(set).hi;
  const std::int64_t size = Tiles::Out::size(a.problem);
  Tiles tiles(a, set.order, set.scratch);
  const auto process = [&](Tile tile) {
    std::int64_t x = 0;
    for (std::int64_t head = 0; head < set.heads; ++head) {
      tiles.start({set.head_kv + head, head, set.heads, reach_end}, tile);
      for (std::int64_t i = 0; i < set.per_head; ++i, ++x) {
        process_visible(set, x, &tiles, outs + x * size);
      }
    }
  };
  if (is_one_tile(set)) {
    const std::int64_t begin = keys.lo / kKeyBlock * kKeyBlock;
    if (keys.lo < keys.hi) process({begin, keys.hi - begin});
    return;
  }
  const std::int64_t tile_kv = Tiles::tile_kv(a);
  const TileSpan span = tiles_of(keys, tile_kv);
  for (std::int64_t index = span.begin; index < span.end; ++index) {
    process(tile_at(index, tile_kv, set.s.band.len_kv));
  }
}

/// Clears the outs of all row blocks.
template <class Tiles>
static void clear_outs(const RowBlockSet<Tiles>& set, typename RowBlockSet<Tiles>::T* outs) {
  const std::int64_t size = Tiles::Out::size(set.a.problem);
  for (std::int64_t x = 0; x < set.count(); ++x) {
    Tiles::Out::clear(set.a.problem, set.row_blocks()[x], outs + x * size);
    set.row_blocks()[x].has_out = true;
  }
}

/// The same for row blocks without a tile.
template <class Tiles>
static void clear_empty_outs(const RowBlockSet<Tiles>& set, typename RowBlockSet<Tiles>::T* outs) {
  const std::int64_t size = Tiles::Out::size(set.a.problem);
  for (std::int64_t x = 0; x < set.count(); ++x) {
    RowBlock<typename Tiles::Vocabulary>& row_block = set.row_blocks()[x];
    if (!row_block.has_out) Tiles::Out::clear(set.a.problem, row_block, outs + x * size);
    row_block.has_out = true;
  }
}

/// Calls f(block) for the blocks that `keys` is in.
template <class F>
REGARD_KERNEL_FN void for_key_blocks(semantics::KeyRange keys, F f) {
  for (std::int64_t begin = keys.lo / kSumBlockKeys * kSumBlockKeys; begin < keys.hi;
       begin += kSumBlockKeys) {
    f(common_keys(keys, semantics::KeyRange{begin, begin + kSumBlockKeys}));
  }
}

/// Whether `seen` of `keys` is summed without a sum of blocks. The sum of one block alone is that
/// block's, bit for bit, where no sink is added to it.
REGARD_KERNEL_FN bool is_one_sum(const Problem& p, semantics::KeyRange keys,
                                 semantics::KeyRange seen) {
  const bool is_in_one = seen.lo / kSumBlockKeys == (seen.hi - 1) / kSumBlockKeys;
  return keys.hi - keys.lo <= kSumBlockKeys || (is_in_one && !p.sinks.present);
}

/// The row blocks' states, which start it, and outs become the sums over what the rows see of
/// `keys`. More than a block of keys is summed block by block: whether that is so depends on `keys`
/// alone, never on what the rows see of them, and a block without visible keys changes nothing.
template <class Tiles>
static void sum_keys(const RowBlockSet<Tiles>& set, semantics::KeyRange keys,
                     typename RowBlockSet<Tiles>::T* outs) {
  using V = typename Tiles::Vocabulary;
  using T = typename V::Scalar;
  const TiledArgs& a = set.a;
  const semantics::KeyRange seen = common_keys(keys, reach(set));
  if (is_one_tile(set) || is_one_sum(a.problem, keys, seen)) {
    for (std::int64_t x = 0; x < set.count(); ++x) set.row_blocks()[x].has_out = false;
    if (!Tiles::kStartsOut) clear_outs(set, outs);
    process_keys(set, seen, outs);
    if (!set.has_output_rows) clear_empty_outs(set, outs);
    return;
  }
  clear_outs(set, outs);
  auto* const totals = reinterpret_cast<RowState<V>*>(set.scratch + a.at_totals);
  T* const block_outs = reinterpret_cast<T*>(set.scratch + a.at_block);
  for (std::int64_t x = 0; x < set.count(); ++x) {
    RowState<V>& state = set.row_blocks()[x].state;
    totals[x] = state;
    clear_state(&state);
    // A block's maximum is no less than the total's, which may be a sink's.
    for (int w = 0; w < lanes_of(set.row_blocks()[x]); ++w) state.max[w] = totals[x].max[w];
  }
  clear_outs(set, block_outs);
  const std::int64_t size = Tiles::Out::size(a.problem);
  for_key_blocks(seen, [&](semantics::KeyRange block) {
    process_keys(set, block, block_outs);
    for (std::int64_t x = 0; x < set.count(); ++x) {
      RowBlock<V>& row_block = set.row_blocks()[x];
      alignas(64) T rescale[V::kWidth];
      close_block<V>(a.problem, row_block.vectors, &row_block.state, totals + x, rescale);
      Tiles::Out::close_block(a.problem, row_block, rescale, block_outs + x * size,
                              outs + x * size);
    }
  });
  for (std::int64_t x = 0; x < set.count(); ++x) set.row_blocks()[x].state = totals[x];
}

/// Divides by the sums, writes out and lse; the outs are used up.
template <class Tiles>
static void write_outs(const RowBlockSet<Tiles>& set, typename RowBlockSet<Tiles>::T* outs) {
  const std::int64_t size = Tiles::Out::size(set.a.problem);
  for (std::int64_t x = 0; x < set.count(); ++x) {
    const auto& row_block = set.row_blocks()[x];
    if (Tiles::kAddsRows && set.has_output_rows) {
      if (!row_block.is_written) write_output_rows(set.a.problem, row_block, outs + x * size);
    } else {
      Tiles::Out::write(set.a.problem, row_block, outs + x * size);
    }
    write_stats(set.a.problem, row_block);
  }
}

/// Whether outs are rows: where all keys lie in one tile, where a window lets each few rows
/// multiply their own, and where few of a vector's rows are left over. Elsewhere out^T is 1.01
/// times as fast in f32.
template <class Tiles>
static bool has_output_rows(const RowBlockSet<Tiles>& set) {
  using V = typename Tiles::Vocabulary;
  const Problem& p = set.a.problem;
  if (set.a.ends_at_once) return true;
  if (p.head_dim_v % V::kLanes != 0 || p.out_amax.present) return false;
  const semantics::KeyRange keys = {0, set.s.band.len_kv}, seen = common_keys(keys, reach(set));
  if (!Tiles::has_dense_values(p, set.s.b, set.head_kv)) return false;
  if (is_one_tile(set)) return true;
  if (!is_one_sum(p, keys, seen)) return false;
  constexpr std::int64_t kFewTiles = 4;
  const RowBlock<V>& last = set.row_blocks()[set.per_head - 1];
  const std::int64_t tile_kv = Tiles::tile_kv(set.a);
  const bool has_few_left = lanes_of(last) - last.rows >= kOutputRows;
  return seen.hi <= tile_kv || (has_few_left && seen.hi - seen.lo <= kFewTiles * tile_kv);
}

/// Rows that see all their keys in one go; the set is used up.
template <class Tiles>
static void forward_rows(RowBlockSet<Tiles>& set) {
  auto* const outs = reinterpret_cast<typename RowBlockSet<Tiles>::T*>(set.scratch + set.a.at_out);
  if constexpr (Tiles::kAddsRows) set.has_output_rows = has_output_rows(set);
  sum_keys(set, {0, set.s.band.len_kv}, outs);
  write_outs(set, outs);
}

}  // namespace regard::cpu

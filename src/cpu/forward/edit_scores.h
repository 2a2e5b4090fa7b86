#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/forward/score_functions.h"
#include "cpu/forward/softmax.h"
#include "cpu/prefetch.h"
#include "cpu/simd/vector_math.h"

// Edits of a row block's scores^T [keys][W], in the order of semantics/score_edits.h. Masks and
// biases lie with keys in rows; blocks of kLanes x kLanes are transposed into lanes. Element by
// element they cost as much as the products.

namespace regard::cpu {

/// scores of keys [begin, end) *= softmax_scale, for one vector of rows.
template <class V>
static void scale_keys(const Problem& p, std::int64_t begin, std::int64_t end,
                       typename V::Scalar* scores) {
  const auto scale = V::set(static_cast<typename V::Scalar>(p.softmax_scale));
  for (std::int64_t j = begin; j < end; ++j) {
    typename V::Scalar* const at = scores + j * V::kWidth;
    V::store(at, V::load(at) * scale);
  }
}

/// softcap * tanh(score * softmax_scale / softcap). kMax: max [W] grows to the greatest.
template <class V, bool kMax>
static void cap_scores(const Problem& p, const RowBlock<V>& row_block, std::int64_t size,
                       typename V::Scalar* scores, typename V::Scalar* max) {
  using Vec = typename V::Vec;
  [[maybe_unused]] const auto scale = tanh_scale<V>(p.softmax_scale, p.softcap, p.softcap);
  for (int v = 0; v < row_block.vectors; ++v) {
    typename V::Scalar* const first = scores + v * V::kLanes;
    Vec row_max{};
    if constexpr (kMax) row_max = V::load(max + v * V::kLanes);
    for_blocks<kExp2Vectors>(
        size, [&](std::int64_t j, auto keys) __attribute__((always_inline)) {
          constexpr int kKeys = decltype(keys)::value;
          typename V::Scalar* const score = first + j * V::kWidth;
          Vec x[kKeys];
          REGARD_UNROLL for (int i = 0; i < kKeys; ++i) x[i] = V::load(score + i * V::kWidth);
          if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
            scaled_tanh<V, kKeys>(x, scale);
          } else {
            REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
              x[i] = semantics::softcap_score(
                  x[i] * V::set(p.softmax_scale), V::set(p.softcap),
                  [](auto t) __attribute__((always_inline)) { return tanh_vector<V>(t); });
            }
          }
          REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
            V::store(score + i * V::kWidth, x[i]);
            if constexpr (kMax) row_max = V::max(x[i], row_max);
          }
        });
    if constexpr (kMax) V::store(max + v * V::kLanes, row_max);
  }
}

/// The scale where it is not in the factor (with softcap it never is), and softcap.
template <class V>
static void scale_and_cap_scores(const Problem& p, const RowBlock<V>& row_block, std::int64_t size,
                                 typename V::Scalar* scores) {
  if (p.caps_scores) {
    cap_scores<V, false>(p, row_block, size, scores, nullptr);
  } else if (p.prescale_scores) {
    for (int v = 0; v < row_block.vectors; ++v) {
      scale_keys<V>(p, 0, size, scores + v * V::kLanes);
    }
  }
}

template <class V>
static void add_alibi(const RowBlock<V>& row_block, Tile tile, typename V::Scalar* scores) {
  using T = typename V::Scalar;
  // Distances up to 2^22 are exact as floats even after adding a tile: the usual case, in vectors.
  constexpr std::int64_t kExact = std::int64_t{1} << 22;
  alignas(64) T from[V::kWidth];
  bool exact = tile.size < kExact;
  for (int w = 0; w < lanes_of(row_block); ++w) {
    const std::int64_t distance = semantics::diagonal_distance(row_block.position[w], tile.begin);
    exact = exact && distance < kExact;
    from[w] = exact ? static_cast<T>(row_block.position[w] - tile.begin) : T(0);
  }
  for (std::int64_t j = 0; j < tile.size; ++j) {
    T* row = scores + j * V::kWidth;
    if (!exact) {
      for (int w = 0; w < lanes_of(row_block); ++w) {
        row[w] += semantics::alibi_bias(row_block.slope[w], row_block.position[w], tile.begin + j);
      }
      continue;
    }
    for (int v = 0; v < row_block.vectors; ++v) {
      const int at = v * V::kLanes;
      const auto difference = V::load(from + at) - V::set(static_cast<T>(j));
      const auto distance = V::select(V::sign(difference), -difference, difference);
      V::store(row + at, V::load(row + at) - V::load(row_block.slope + at) * distance);
    }
  }
}

/// A mask or bias as a row block reads it: the address of each lane's row of keys, from `tile` on.
template <class V>
struct EditRows {
  const char* row[V::kWidth];
  bool same = true;  // all lanes share one row
};

template <class V>
static EditRows<V> edit_rows(const View& view, const RowBlock<V>& row_block, Tile tile) {
  EditRows<V> rows;
  const std::int64_t offset = tile.begin * view.stride[3] * element_bytes(view.type);
  for (int w = 0; w < row_block.rows; ++w) {
    rows.row[w] = row_address(view, row_block.b, row_block.head[w], row_block.query[w]) + offset;
    rows.same = rows.same && rows.row[w] == rows.row[0];
  }
  return rows;
}

/// Those of one vector's lanes.
struct LaneRows {
  const char* const* row;
  int count;  // in use
  bool same;
  bool dense;  // keys follow one another, and vectors of them can be loaded
};

template <class V>
REGARD_KERNEL_FN LaneRows lanes_from(const EditRows<V>& rows, const RowBlock<V>& row_block, int v,
                                     bool dense) {
  const std::int64_t left = row_block.rows - v * V::kLanes;
  return {rows.row + v * V::kLanes, left < V::kLanes ? static_cast<int>(left) : V::kLanes,
          rows.same, dense};
}

/// score = edit(score, element) for one vector of the scores of each of `size` keys, where
/// load(row, j) gives kLanes elements of a dense row from key j on and load_one(row, j) one.
template <class V, class Load, class LoadOne, class Edit>
REGARD_KERNEL_FN void edit_by_rows(LaneRows rows, std::int64_t size, typename V::Scalar* scores,
                                   Load load, LoadOne load_one, Edit edit) {
  const auto edit_at = [&](std::int64_t j, typename V::Vec element) __attribute__((always_inline)) {
    typename V::Scalar* at = scores + j * V::kWidth;
    V::store(at, edit(V::load(at), element));
  };
  const bool has_blocks = rows.dense && !rows.same;
  const std::int64_t blocks_end = has_blocks ? size / V::kLanes * V::kLanes : 0;
  for (std::int64_t j = 0; j < blocks_end; j += V::kLanes) {
    typename V::Vec block[V::kLanes];
    REGARD_UNROLL for (int lane = 0; lane < V::kLanes; ++lane) {
      block[lane] = load(rows.row[lane < rows.count ? lane : 0], j);
    }
    V::transpose(block);
    REGARD_UNROLL for (int y = 0; y < V::kLanes; ++y) edit_at(j + y, block[y]);
  }
  for (std::int64_t j = blocks_end; j < size; ++j) {
    typename V::Vec element = V::set(load_one(rows.row[0], j));
    for (int lane = 1; lane < rows.count && !rows.same; ++lane) {
      element[lane] = load_one(rows.row[lane], j);
    }
    edit_at(j, element);
  }
}

/// Whether vectors of a bias can be loaded.
template <class V>
REGARD_KERNEL_FN bool is_dense(const View& bias) {
  return bias.stride[3] == 1 && is_vector_type<V>(bias.type);
}

/// score = score * scale + bias in one pass, rounded after each as score functions are; where the
/// bias is -inf, it, whatever the score. max [W], unless null, grows to the greatest. Returns
/// whether a bias is -inf.
template <class V>
static bool add_bias(const View& bias, const RowBlock<V>& row_block, Tile tile,
                     typename V::Scalar scale, typename V::Scalar* scores,
                     typename V::Scalar* max) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  const std::int64_t bytes = element_bytes(bias.type), step = bias.stride[3] * bytes;
  const EditRows<V> rows = edit_rows(bias, row_block, tile);
  const bool dense = is_dense<V>(bias);
  const Vec scales = V::set(scale);
  Vec least = V::set(0);
  const auto add_from = [&](Element type) __attribute__((always_inline)) {
    for (int v = 0; v < row_block.vectors; ++v) {
      Vec row_max = minus_infinity<V>();
      edit_by_rows<V>(
          lanes_from(rows, row_block, v, dense), tile.size, scores + v * V::kLanes,
          [&](const char* from, std::int64_t j) __attribute__((always_inline)) {
            // Of the next tile: each row is a stream of its own, more than hardware follows.
            __builtin_prefetch(from + (j + tile.size) * bytes, 0, kIntoL2);
            return load_vector<V>(type, from + j * bytes);
          },
          [&](const char* from, std::int64_t j) __attribute__((always_inline)) {
            T one = 0;  // what GCC 12 sees of load_row under ThreadSanitizer may not write it
            load_row(type, from + j * step, 1, 1, &one);
            return one;
          },
          [&](Vec score, Vec x) __attribute__((always_inline)) {
            const Vec sum = V::select(x == minus_infinity<V>(), x, score * scales + x);
            row_max = V::max(sum, row_max);
            least = V::select(x < least, x, least);
            return sum;
          });
      if (max == nullptr) continue;
      V::store(max + v * V::kLanes, V::max(row_max, V::load(max + v * V::kLanes)));
    }
  };
  // A constant, or there is a branch for each vector, and for each key that all rows share.
  if (bias.type == Element::kF32) {
    add_from(Element::kF32);
  } else if (bias.type == Element::kBf16) {
    add_from(Element::kBf16);
  } else if (bias.type == Element::kF16) {
    add_from(Element::kF16);
  } else {
    add_from(bias.type);
  }
  bool hides = false;
  for (int lane = 0; lane < V::kLanes; ++lane) {
    hides = hides || least[lane] == static_cast<T>(-__builtin_inf());
  }
  return hides;
}

/// Masks by attn_mask.
template <class V>
static void apply_mask(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                       typename V::Scalar* scores) {
  using T = typename V::Scalar;
  const EditRows<V> rows = edit_rows(p.mask, row_block, tile);
  const auto hide = [](auto score, auto attend) __attribute__((always_inline)) {
    return V::select(attend == V::set(T(0)), minus_infinity<V>(), score);
  };
  if (p.mask.stride[3] == 1) {
    for (int v = 0; v < row_block.vectors; ++v) {
      edit_by_rows<V>(
          lanes_from(rows, row_block, v, true), tile.size, scores + v * V::kLanes,
          [](const char* from, std::int64_t j)
              __attribute__((always_inline)) { return V::load_bytes(from + j); },
          [](const char* from, std::int64_t j)
              __attribute__((always_inline)) { return static_cast<T>(from[j]); },
          hide);
    }
    return;
  }
  for (int w = 0; w < row_block.rows; ++w) {
    for (std::int64_t j = 0; j < tile.size; ++j) {
      if (rows.row[w][j * p.mask.stride[3]] == 0) {
        scores[j * V::kWidth + w] = static_cast<T>(-__builtin_inf());
      }
    }
  }
}

/// Masks those of the last keys that tree_mask hides. Element by element: they are few.
template <class V>
static void apply_tree(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                       typename V::Scalar* scores) {
  using T = typename V::Scalar;
  const std::int64_t end = tile.begin + tile.size;
  const std::int64_t first = semantics::clamp(row_block.tree_begin, tile.begin, end);
  for (int w = 0; w < row_block.rows; ++w) {
    const std::int64_t row = row_block.b * p.tree.stride[0] + row_block.query[w] * p.tree.stride[1];
    for (std::int64_t j = first; j < end; ++j) {
      const std::int64_t at = row + (j - row_block.tree_begin) * p.tree.stride[2];
      if (p.tree.data[at] == 0) {
        scores[(j - tile.begin) * V::kWidth + w] = static_cast<T>(-__builtin_inf());
      }
    }
  }
}

/// Masks keys of other segments.
template <class V>
static void apply_segments(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                           typename V::Scalar* scores) {
  using T = typename V::Scalar;
  for (std::int64_t j = 0; j < tile.size; ++j) {
    const std::int64_t at = row_index(p.segments_kv, row_block.b, 0, tile.begin + j);
    const std::int32_t segment = *element_at<std::int32_t>(p.segments_kv, at);
    for (int w = 0; w < lanes_of(row_block); ++w) {
      T& score = scores[j * V::kWidth + w];
      score = segment == row_block.segment[w] ? score : static_cast<T>(-__builtin_inf());
    }
  }
}

/// The keys of a tile that each row sees, relative to it: small integers are exact in T.
template <class V>
struct LaneKeys {
  using T = typename V::Scalar;
  alignas(64) T lo[V::kWidth];
  alignas(64) T hi[V::kWidth];
};

template <class V>
static void find_lane_keys(const RowBlock<V>& row_block, Tile tile, LaneKeys<V>* lanes) {
  using T = typename V::Scalar;
  for (int w = 0; w < lanes_of(row_block); ++w) {
    const semantics::KeyRange keys = keys_in_tile(row_block, w, tile);
    lanes->lo[w] = static_cast<T>(keys.lo);
    lanes->hi[w] = static_cast<T>(keys.hi);
  }
}

/// Masks, of keys [begin, end) of the tile, those outside of each row's range, for vector v of
/// rows: those before or behind what all of them see.
template <class V>
static void hide_outside(const LaneKeys<V>& lanes, int v, std::int64_t begin, std::int64_t end,
                         typename V::Scalar* scores) {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  const int at = v * V::kLanes;
  const Vec from = V::load(lanes.lo + at), to = V::load(lanes.hi + at);
  const auto hide = [&](std::int64_t j, std::int64_t j_end) __attribute__((always_inline)) {
    for (; j < j_end; ++j) {
      const Vec key = V::set(static_cast<T>(j));
      T* const score = scores + j * V::kWidth + at;
      const auto visible = (key >= from) & (key < to);
      V::store(score, V::select(visible, V::load(score), minus_infinity<V>()));
    }
  };
  // Both ends grow with the row.
  const auto last_lo = static_cast<std::int64_t>(lanes.lo[at + V::kLanes - 1]);
  const auto first_hi = static_cast<std::int64_t>(lanes.hi[at]);
  hide(begin, last_lo < end ? last_lo : end);
  const std::int64_t behind = first_hi > last_lo ? first_hi : last_lo;
  hide(behind > begin ? behind : begin, end);
}

/// Masks. `tile` is what some row sees.
template <class V>
static void mask_scores(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                        typename V::Scalar* scores,
                        const EditScratch<typename V::Scalar>& scratch) {
  if (p.mask.present) apply_mask<V>(p, row_block, tile, scores);
  if (p.tree.present) apply_tree<V>(p, row_block, tile, scores);
  if (p.segments_q.present) apply_segments<V>(p, row_block, tile, scores);
  if (p.masks_by_function) mask_by_function<V>(p, row_block, tile, scores, scratch);
  if (keys_in_tile(row_block, lanes_of(row_block) - 1, tile).lo == 0 &&
      keys_in_tile(row_block, 0, tile).hi == tile.size) {
    return;
  }
  LaneKeys<V> lanes;
  find_lane_keys(row_block, tile, &lanes);
  for (int v = 0; v < row_block.vectors; ++v) hide_outside(lanes, v, 0, tile.size, scores);
}

/// What is added after functions, and masks. `partial`: not every row sees every key.
template <class V>
static void bias_and_mask_scores(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                                 bool partial, typename V::Scalar* scores,
                                 const EditScratch<typename V::Scalar>& scratch) {
  if (p.slopes.present) add_alibi<V>(row_block, tile, scores);
  if (p.bias.present) {
    using T = typename V::Scalar;
    add_bias<V>(p.bias, row_block, tile, T(1), scores, nullptr);
  }
  if (partial) mask_scores<V>(p, row_block, tile, scores, scratch);
}

/// All edits of a tile of scores.
template <class V>
static void edit_scores(const Problem& p, const RowBlock<V>& row_block, Tile tile, bool partial,
                        typename V::Scalar* scores,
                        const EditScratch<typename V::Scalar>& scratch) {
  scale_and_cap_scores<V>(p, row_block, tile.size, scores);
  if (p.edits_by_function) edit_by_functions<V>(p, row_block, tile, scores, scratch);
  bias_and_mask_scores<V>(p, row_block, tile, partial, scores, scratch);
}

/// The keys of a tile that a row block computes, in whole blocks but at its end: none outside is
/// visible to any row.
struct VisibleKeys {
  Tile range;          // of size 0 where there is none
  bool all;            // each is visible to every row
  bool all_but_edits;  // so it is, unless a bias or a score function makes it -inf
};

/// All edits of the keys, and the greatest of each row, in max [W], in as few passes as there are
/// edits. Returns whether a score may be hidden (-inf).
template <class V>
static bool edit_scores_with_max(const Problem& p, const RowBlock<V>& row_block, VisibleKeys seen,
                                 typename V::Scalar* scores,
                                 const EditScratch<typename V::Scalar>& scratch,
                                 typename V::Scalar* max) {
  using T = typename V::Scalar;
  const std::int64_t size = seen.range.size;
  const bool ends_with_cap =
      p.caps_scores && !p.slopes.present && !p.bias.present && !p.edits_by_function && seen.all;
  for (int v = 0; v < row_block.vectors; ++v) V::store(max + v * V::kLanes, minus_infinity<V>());
  if (ends_with_cap) {
    cap_scores<V, true>(p, row_block, size, scores, max);
    return false;
  }
  const bool scales_with_bias =
      p.bias.present && !p.caps_scores && !p.slopes.present && !p.edits_by_function;
  if (!scales_with_bias) scale_and_cap_scores<V>(p, row_block, size, scores);
  if (p.edits_by_function) edit_by_functions<V>(p, row_block, seen.range, scores, scratch);
  if (p.slopes.present) add_alibi<V>(row_block, seen.range, scores);
  bool hides = !seen.all_but_edits || p.edits_by_function;
  if (p.bias.present) {
    const T scale = scales_with_bias ? static_cast<T>(p.softmax_scale) : T(1);
    T* const bias_max = seen.all_but_edits ? max : nullptr;
    if (add_bias<V>(p.bias, row_block, seen.range, scale, scores, bias_max)) {
      hides = true;
    }
    if (seen.all_but_edits) return hides;
  }
  if (!seen.all_but_edits) mask_scores<V>(p, row_block, seen.range, scores, scratch);
  accumulate_max<V>(row_block.vectors, size, scores, max);
  return hides;
}

}  // namespace regard::cpu

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

/// scores *= softmax_scale.
template <class V>
static void scale_scores(const Problem& p, const RowBlock<V>& row_block, std::int64_t size,
                         typename V::Scalar* scores) {
  const auto scale = V::set(static_cast<typename V::Scalar>(p.softmax_scale));
  for (std::int64_t j = 0; j < size; ++j) {
    for (int v = 0; v < row_block.vectors; ++v) {
      typename V::Scalar* at = scores + j * V::kWidth + v * V::kLanes;
      V::store(at, V::load(at) * scale);
    }
  }
}

/// The scale where it is not in the factor (with softcap it never is), and softcap.
template <class V>
static void scale_and_cap_scores(const Problem& p, const RowBlock<V>& row_block, std::int64_t size,
                                 typename V::Scalar* scores) {
  if (!p.caps_scores) {
    if (p.prescale_scores) scale_scores<V>(p, row_block, size, scores);
    return;
  }
  const auto scale = V::set(static_cast<typename V::Scalar>(p.softmax_scale));
  const auto softcap = V::set(static_cast<typename V::Scalar>(p.softcap));
  for (std::int64_t j = 0; j < size; ++j) {
    for (int v = 0; v < row_block.vectors; ++v) {
      typename V::Scalar* at = scores + j * V::kWidth + v * V::kLanes;
      V::store(at, semantics::softcap_score(
                       V::load(at) * scale, softcap,
                       [](auto t) __attribute__((always_inline)) { return tanh_vector<V>(t); }));
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

/// score = edit(score, element) for every score of the tile, where load(row, j) gives kLanes
/// elements of a row from key j on and load_one(row, j) one. Rows must be dense.
template <class V, class Load, class LoadOne, class Edit>
REGARD_KERNEL_FN void edit_by_rows(const EditRows<V>& rows, const RowBlock<V>& row_block,
                                   std::int64_t size, typename V::Scalar* scores, Load load,
                                   LoadOne load_one, Edit edit) {
  const auto edit_at = [&](std::int64_t j, int v, typename V::Vec element)
      __attribute__((always_inline)) {
    typename V::Scalar* at = scores + j * V::kWidth + v * V::kLanes;
    V::store(at, edit(V::load(at), element));
  };
  std::int64_t blocks_end = rows.same ? 0 : size / V::kLanes * V::kLanes;
  for (int v = 0; v < row_block.vectors; ++v) {
    const char* const* row = rows.row + v * V::kLanes;
    const std::int64_t left = row_block.rows - v * V::kLanes;
    const int count = left < V::kLanes ? static_cast<int>(left) : V::kLanes;
    for (std::int64_t j = 0; j < blocks_end; j += V::kLanes) {
      typename V::Vec block[V::kLanes];
      REGARD_UNROLL for (int lane = 0; lane < V::kLanes; ++lane) {
        block[lane] = load(row[lane < count ? lane : 0], j);
      }
      V::transpose(block);
      REGARD_UNROLL for (int y = 0; y < V::kLanes; ++y) edit_at(j + y, v, block[y]);
    }
    for (std::int64_t j = blocks_end; j < size; ++j) {
      typename V::Vec element = V::set(load_one(row[0], j));
      for (int lane = 1; lane < count && !rows.same; ++lane) element[lane] = load_one(row[lane], j);
      edit_at(j, v, element);
    }
  }
}

/// Adds the bias; -inf masks by selection. `row` holds a tile's keys.
template <class V>
static void add_bias(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                     typename V::Scalar* scores, typename V::Scalar* row) {
  using T = typename V::Scalar;
  const Element type = p.bias.type;
  const EditRows<V> rows = edit_rows(p.bias, row_block, tile);
  const auto edit = [](auto score, auto bias) __attribute__((always_inline)) {
    return V::select(bias == minus_infinity<V>(), bias, score + bias);
  };
  if (p.bias.stride[3] == 1 && is_vector_type<V>(type)) {
    const std::int64_t bytes = element_bytes(type);
    edit_by_rows<V>(
        rows, row_block, tile.size, scores,
        [&](const char* from, std::int64_t j) __attribute__((always_inline)) {
          // Of the next tile: each row is a stream of its own, more than hardware follows.
          __builtin_prefetch(from + (j + tile.size) * bytes, 0, kIntoL2);
          return load_vector<V>(type, from + j * bytes);
        },
        [&](const char* from, std::int64_t j) __attribute__((always_inline)) {
          T one = 0;  // what GCC 12 sees of load_row under ThreadSanitizer may not write it
          load_row(type, from + j * bytes, 1, 1, &one);
          return one;
        },
        edit);
    return;
  }
  const T masked = static_cast<T>(-__builtin_inf());
  for (int w = 0; w < row_block.rows; ++w) {
    load_row(type, rows.row[w], p.bias.stride[3], tile.size, row);
    for (std::int64_t j = 0; j < tile.size; ++j) {
      T& score = scores[j * V::kWidth + w];
      score = row[j] == masked ? masked : score + row[j];
    }
  }
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
    edit_by_rows<V>(
        rows, row_block, tile.size, scores,
        [](const char* from, std::int64_t j)
            __attribute__((always_inline)) { return V::load_bytes(from + j); },
        [](const char* from, std::int64_t j)
            __attribute__((always_inline)) { return static_cast<T>(from[j]); },
        hide);
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

/// Masks keys outside each row's range.
template <class V>
static void apply_band(const RowBlock<V>& row_block, Tile tile, typename V::Scalar* scores) {
  using T = typename V::Scalar;
  // Both ends grow with the row.
  const auto& last = row_block.keys[row_block.rows - 1];
  if (last.lo <= tile.begin && row_block.keys[0].hi >= tile.begin + tile.size) return;
  alignas(64) T lo[V::kWidth];
  alignas(64) T hi[V::kWidth];
  for (int w = 0; w < lanes_of(row_block);
       ++w) {  // relative to the tile: small integers are exact in T
    lo[w] = static_cast<T>(semantics::clamp(row_block.keys[w].lo - tile.begin, 0, tile.size));
    hi[w] = static_cast<T>(semantics::clamp(row_block.keys[w].hi - tile.begin, 0, tile.size));
  }
  for (std::int64_t j = 0; j < tile.size; ++j) {
    const auto key = V::set(static_cast<T>(j));
    for (int v = 0; v < row_block.vectors; ++v) {
      const int at = v * V::kLanes;
      T* score = scores + j * V::kWidth + at;
      const auto visible = (key >= V::load(lo + at)) & (key < V::load(hi + at));
      V::store(score, V::select(visible, V::load(score), minus_infinity<V>()));
    }
  }
}

/// What is added after functions, and masks. `partial`: not every row sees every key.
template <class V>
static void bias_and_mask_scores(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                                 bool partial, typename V::Scalar* scores,
                                 const EditScratch<typename V::Scalar>& scratch) {
  if (p.slopes.present) add_alibi<V>(row_block, tile, scores);
  if (p.bias.present) add_bias<V>(p, row_block, tile, scores, scratch.row);
  if (!partial) return;
  if (p.mask.present) apply_mask<V>(p, row_block, tile, scores);
  if (p.tree.present) apply_tree<V>(p, row_block, tile, scores);
  if (p.segments_q.present) apply_segments<V>(p, row_block, tile, scores);
  if (p.masks_by_function) mask_by_function<V>(p, row_block, tile, scores, scratch);
  apply_band<V>(row_block, tile, scores);
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

}  // namespace regard::cpu

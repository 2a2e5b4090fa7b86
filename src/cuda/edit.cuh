#pragma once

#include <cstdint>

#include "cuda/product.cuh"
#include "semantics/score_edits.h"

// Edits of a thread's scores of a tile, in the order of semantics/score_edits.h, and dropout.

namespace regard::cuda {

/// softmax_scale and softcap in the kernel's arithmetic.
template <class T>
REGARD_DEVICE_FN T softmax_scale_of(const Problem& p) {
  if constexpr (sizeof(T) == sizeof(float)) return p.softmax_scale_f32;
  return static_cast<T>(p.softmax_scale);
}
template <class T>
REGARD_DEVICE_FN T softcap_of(const Problem& p) {
  if constexpr (sizeof(T) == sizeof(float)) return p.softcap_f32;
  return static_cast<T>(p.softcap);
}

/// The scale where it is not in the factor (there, a negative one turns the scores over, for the
/// factor is positive), and softcap.
template <class T>
REGARD_DEVICE_FN T scale_and_cap(const Problem& p, T score) {
  if (p.prescale_scores) {
    score *= softmax_scale_of<T>(p);
  } else if (p.negates_scores) {
    score = -score;
  }
  if (!p.caps_scores) return score;
  return semantics::softcap_score(score, softcap_of<T>(p), [](T x) { return tanh_of(x); });
}

/// False where a mask, a segment or arithmetic hides key j from the row. Reads nothing of keys that
/// arithmetic hides: they may lie outside of the tensors.
template <class T>
REGARD_DEVICE_FN bool is_visible(const Problem& p, std::int64_t b, const RowFacts<T>& row,
                                 std::int64_t j) {
  if (j < row.lo || j >= row.hi) return false;
  if (p.mask.present) {
    const char* const at = problem::row_address(p.mask, b, row.head, row.query);
    if (at[j * p.mask.stride[3]] == 0) return false;
  }
  if (p.segments_q.present) {
    const std::int64_t at = problem::row_index(p.segments_kv, b, 0, j);
    if (*problem::element_at<std::int32_t>(p.segments_kv, at) != row.segment) return false;
  }
  return true;
}

/// ALiBi and the bias. A bias of -inf masks.
template <class T>
REGARD_DEVICE_FN T add_biases(const Problem& p, std::int64_t b, const RowFacts<T>& row,
                              std::int64_t j, T score) {
  if (p.slopes.present) score += semantics::alibi_bias(row.slope, row.position, j);
  if (!p.bias.present) return score;
  const char* const at = problem::row_address(p.bias, b, row.head, row.query);
  const T bias = load_element<T>(p.bias.type, at, j * p.bias.stride[3]);
  return bias == minus_infinity<T>() ? bias : score + bias;
}

/// A raw score of key j after all edits, -inf where the row may not see the key. `is_full`: it may.
/// keep_capped(score) receives the score behind softcap.
template <class T, class KeepCapped>
REGARD_DEVICE_FN T edit_score(const Problem& p, std::int64_t b, const RowFacts<T>& row,
                              std::int64_t j, bool is_full, T raw, KeepCapped keep_capped) {
  const T score = scale_and_cap(p, raw);
  keep_capped(score);
  const bool visible = is_full || is_visible(p, b, row, j);
  return visible ? add_biases(p, b, row, j, score) : minus_infinity<T>();
}

/// Edits a thread's raw scores of the tile at key `first`: what a row may not see becomes -inf.
/// `is_full`: no row sees less than all of the tile. keep_capped(i, c, score) receives the scores
/// behind softcap.
template <class T, class Block, class Facts, class KeepCapped>
REGARD_DEVICE_FN void edit_scores(const Block& block, const Problem& p, std::int64_t b, Facts facts,
                                  std::int64_t first, bool is_full, T (&scores)[kOwn][kOwn],
                                  KeepCapped keep_capped) {
  const Place at = place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const RowFacts<T> row = facts[at.row + i];
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      scores[i][c] = edit_score(p, b, row, first + at.column + c, is_full, scores[i][c],
                                [&](T score) { keep_capped(i, c, score); });
    }
  }
}

template <class T, class Block, class Facts>
REGARD_DEVICE_FN void edit_scores(const Block& block, const Problem& p, std::int64_t b, Facts facts,
                                  std::int64_t first, bool is_full, T (&scores)[kOwn][kOwn]) {
  edit_scores(block, p, b, facts, first, is_full, scores, [](int, int, T) {});
}

/// tree_mask's columns for sequence b: the first is of key `begin`, which may be below 0.
struct TreeColumns {
  std::int64_t b, begin;
};
REGARD_KERNEL_FN TreeColumns tree_columns(const Problem& p, const Sequence& s) {
  return {s.b, s.band.len_kv - p.tree_keys};
}

/// The element of a query and the first column.
REGARD_DEVICE_FN const char* tree_row(const Problem& p, const TreeColumns& tree,
                                      std::int64_t query) {
  return p.tree.data + tree.b * p.tree.stride[0] + query * p.tree.stride[1];
}

/// Edited scores that tree_mask hides become -inf; nothing is read of keys that arithmetic hides.
/// Apart from the other edits, which backwards have, too: these have no tree_mask.
template <class T, class Block, class Facts>
REGARD_DEVICE_FN void hide_by_tree(const Block& block, const Problem& p, const TreeColumns& tree,
                                   Facts facts, std::int64_t first, T (&scores)[kOwn][kOwn]) {
  if (!p.tree.present || first + kTile <= tree.begin) return;
  const Place at = place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const RowFacts<T> row = facts[at.row + i];
    REGARD_DEVICE_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      const std::int64_t j = first + at.column + c;
      if (j < tree.begin || j < row.lo || j >= row.hi) continue;
      const char* const element =
          tree_row(p, tree, row.query) + (j - tree.begin) * p.tree.stride[2];
      if (*element == 0) scores[i][c] = minus_infinity<T>();
    }
  }
}

/// What dropout does to a row's elements of keys [j, j + kOwn), j a multiple of kOwn: dropped ones
/// are multiplied by 0, so that hidden ones keep their sign.
template <class T>
REGARD_DEVICE_FN void drop(const Problem& p, const RowFacts<T>& row, std::int64_t j,
                           T (&values)[kOwn]) {
  static_assert(semantics::kDropoutKeysPerBlock % kOwn == 0);
  const semantics::PhiloxBlock draws = semantics::dropout_block(p.dropout, row.stream, j);
  REGARD_DEVICE_UNROLL
  for (int c = 0; c < kOwn; ++c) {
    if (semantics::dropout_draw(draws, j + c) >= p.dropout.threshold) values[c] *= T(0);
  }
}

/// Drops a thread's elements of the tile at key `first`.
template <class Block, class Facts>
REGARD_DEVICE_FN void drop_tile(const Block& block, const Problem& p, Facts facts,
                                std::int64_t first, float (&values)[kOwn][kOwn]) {
  if (p.dropout.threshold == 0) return;
  const Place at = place_of(block);
  REGARD_DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    const RowFacts<float> row = facts[at.row + i];
    drop(p, row, first + at.column, values[i]);
  }
}

/// What an output is multiplied by: 1 over the row's sum and over the share that dropout keeps. 0
/// for a row that saw nothing.
template <class T>
REGARD_DEVICE_FN T inverse_sum(const Problem& p, T sum) {
  const T kept = p.dropout.threshold != 0 ? static_cast<T>(p.dropout.threshold) / T(65536) : T(1);
  return sum == T(0) ? T(0) : T(1) / (sum * kept);
}

}  // namespace regard::cuda

// MATH's debugging output: scores or probabilities of every (query, key). Where a row may not see a
// key it holds -inf for edited scores and 0 for the others.

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"

namespace regard::math {

using cpu::Problem;
using cpu::RowBlock;
using cpu::ScoresStage;
using cpu::Tile;

template <class T>
REGARD_KERNEL_FN T masked_score() {
  return static_cast<T>(-__builtin_inf());
}

/// Row (b, h, i) of scores_out; keys follow at stride[3].
template <class T>
REGARD_KERNEL_FN T* scores_row(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i) {
  return element_at<T>(p.scores,
                       b * p.scores.stride[0] + h * p.scores.stride[1] + i * p.scores.stride[2]);
}

/// What a hidden element holds.
template <class T>
REGARD_KERNEL_FN T hidden_score(const Problem& p) {
  return p.scores_stage == ScoresStage::kEdited ? masked_score<T>() : T(0);
}

/// values[j][w] * scale of a tile to their places.
template <class V>
static void write_scores(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                         const typename V::Scalar* values, double scale) {
  using T = typename V::Scalar;
  const T by = static_cast<T>(scale);
  for (int w = 0; w < row_block.rows; ++w) {
    T* row = scores_row<T>(p, row_block.b, row_block.head[w], row_block.query[w]);
    for (std::int64_t j = 0; j < tile.size; ++j) {
      row[(tile.begin + j) * p.scores.stride[3]] = values[j * V::kWidth + w] * by;
    }
  }
}

/// Hides the elements of scaled scores whose edited score is masked.
template <class V>
static void hide_masked(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                        const typename V::Scalar* edited) {
  using T = typename V::Scalar;
  for (int w = 0; w < row_block.rows; ++w) {
    T* row = scores_row<T>(p, row_block.b, row_block.head[w], row_block.query[w]);
    for (std::int64_t j = 0; j < tile.size; ++j) {
      if (edited[j * V::kWidth + w] == masked_score<T>()) {
        row[(tile.begin + j) * p.scores.stride[3]] = hidden_score<T>(p);
      }
    }
  }
}

/// 2^((score - max) * factor) of a tile, divided by the row's sum; a row without a sum is all 0.
template <class V>
static void write_probs(const Problem& p, const RowBlock<V>& row_block, Tile tile,
                        const typename V::Scalar* values) {
  using T = typename V::Scalar;
  for (int w = 0; w < row_block.rows; ++w) {
    T* row = scores_row<T>(p, row_block.b, row_block.head[w], row_block.query[w]);
    const T sum = row_block.state.sum[w];
    for (std::int64_t j = 0; j < tile.size; ++j) {
      const T value = values[j * V::kWidth + w];
      const bool masked = value == T(0) && __builtin_signbit(value);
      row[(tile.begin + j) * p.scores.stride[3]] = masked ? T(0) : value / sum;
    }
  }
}

/// Keys [begin, end) of one row, which it cannot see.
template <class T>
static void hide_keys(const Problem& p, T* row, std::int64_t begin, std::int64_t end) {
  for (std::int64_t j = begin; j < end; ++j) row[j * p.scores.stride[3]] = hidden_score<T>(p);
}

/// Keys before and behind the row block's reach.
template <class V>
static void hide_unreached(const Problem& p, const RowBlock<V>& row_block, Tile reach) {
  using T = typename V::Scalar;
  for (int w = 0; w < row_block.rows; ++w) {
    T* row = scores_row<T>(p, row_block.b, row_block.head[w], row_block.query[w]);
    hide_keys(p, row, 0, reach.begin);
    hide_keys(p, row, reach.begin + reach.size, p.seqlen_kv);
  }
}

/// Rows past their sequence's length see nothing.
template <class T>
static void hide_padding(const Problem& p, const cpu::TaskRows& rows, std::int64_t begin) {
  for (std::int64_t row = begin; row < rows.end; ++row) {
    const std::int64_t h = rows.head_kv * p.group_size + row % p.group_size;
    hide_keys(p, scores_row<T>(p, rows.b, h, row / p.group_size), 0, p.seqlen_kv);
  }
}

}  // namespace regard::math

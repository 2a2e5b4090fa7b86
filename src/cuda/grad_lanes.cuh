#pragma once

#include <cstdint>

#include "cuda/backward_args.h"
#include "cuda/grad_rows.cuh"
#include "cuda/lane_scores.cuh"

// What a backward on tensor cores holds of rows, and a lane's probabilities, computed again.

namespace regard::cuda {

/// What the forward saved of a row, its delta, and which keys of a tile it sees by arithmetic.
struct alignas(16) RowNumbers {
  float max = __builtin_inff();  // of a row that sees nothing: its probabilities are 0
  float inverse = 0.0f;          // of the sum, 0: the row sees nothing
  float delta = 0.0f;
  std::uint32_t keys = 0;  // the first in 16 bits, and one behind the last in the upper 16

  /// Whether key `key` of the tile is among them.
  REGARD_DEVICE_FN bool sees(const RowNumbers& row, int key) {
    return key >= static_cast<int>(row.keys & 0xffffu) && key < static_cast<int>(row.keys >> 16);
  }
};

REGARD_DEVICE_FN RowNumbers row_numbers(const BackwardArgs& args, const Sequence& s,
                                        const RowFacts<float>& facts) {
  const GradProblem& g = args.grad;
  RowNumbers numbers;
  if (!facts.exists || facts.query >= s.len_q) return numbers;
  const auto saved = problem::saved_row<float>(g, s.b, facts.head, facts.query);
  if (saved.sum != 0.0f) {
    numbers.max = saved.max;
    numbers.inverse = 1.0f / saved.sum;
  }
  numbers.delta = args.delta[dense_row(g.problem, s.b, facts.head, facts.query)];
  return numbers;
}

/// The probability of key j in row r, again from a raw score; the hidden value where the row does
/// not see it. *slope becomes softcap's, 1 without one. `edits`: more is done to scores than
/// scaling them and hiding some by arithmetic.
template <class Rows>
REGARD_DEVICE_FN float prob_again(const Problem& p, std::int64_t b, bool edits, bool is_full,
                                  const Rows& rows, int r, std::int64_t j, float raw,
                                  float* slope) {
  float score = raw * p.softmax_scale_f32;
  if (edits) {
    const RowFacts<float> row = rows.facts[r];
    score = edit_score(p, b, row, j, is_full, raw, [&](float capped) {
      const float tanh = capped / p.softcap_f32, own = 1.0f - tanh * tanh;
      if (p.caps_scores) *slope = own > 0.0f ? own : 0.0f;
    });
  } else if (!is_full) {
    const RowFacts<float> row = rows.facts[r];
    if (j < row.lo || j >= row.hi) score = minus_infinity<float>();
  }
  const RowNumbers numbers = rows.numbers[r];
  const bool hidden = score == minus_infinity<float>() || numbers.inverse == 0.0f;
  const bool above = score > numbers.max;  // by a rounding
  const float power = exp2_flushed((score - numbers.max) * static_cast<float>(p.exp2_scale));
  return hidden ? hidden_value<float>() : (above ? 1.0f : power) * numbers.inverse;
}

/// Whether dropout keeps key j in row r.
template <class Rows>
REGARD_DEVICE_FN bool keeps(const Problem& p, const Rows& rows, int r, std::int64_t j) {
  if (p.dropout.threshold == 0) return true;
  const RowFacts<float> row = rows.facts[r];
  return semantics::dropout_keeps(p.dropout, row.stream, j);
}

}  // namespace regard::cuda

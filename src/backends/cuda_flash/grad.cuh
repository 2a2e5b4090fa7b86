#pragma once

#include <cstdint>

#include "backends/cuda_flash/tile.cuh"
#include "backends/cuda_flash/walk.cuh"
#include "cuda/grad_lanes.cuh"
#include "cuda/swizzle.cuh"

// What both of FLASH's backward kernels share: the rows that a block holds, and probabilities and
// gradients of scores, computed again.

namespace regard::cuda_flash {

using cuda::RowNumbers;
using problem::GradProblem;

/// Rows of the other kind that are computed together: keys for queries, queries for keys.
inline constexpr int kUnit = 32;

/// What a block keeps of rows of queries in shared memory. Facts are there with kEdits alone.
template <int kRows, bool kEdits>
struct GradRowsLayout {
  static constexpr int kFacts = kEdits ? kRows : 0;
  static constexpr int kAtFacts = kRows * static_cast<int>(sizeof(RowNumbers));
  static constexpr int kBytes = kAtFacts + kFacts * static_cast<int>(sizeof(cuda::RowFacts<float>));
  static_assert(kBytes % 16 == 0);
};

template <class Numbers, class Facts>
struct GradRows {
  Numbers numbers;
  Facts facts;
};
template <class Numbers, class Facts>
GradRows(Numbers, Facts) -> GradRows<Numbers, Facts>;

template <int kRows, bool kEdits, class Block>
REGARD_DEVICE_FN auto grad_rows(const Block& block, int at) {
  using Layout = GradRowsLayout<kRows, kEdits>;
  return GradRows{
      block.template shared<RowNumbers>(at, kRows),
      block.template shared<cuda::RowFacts<float>>(at + Layout::kAtFacts, Layout::kFacts)};
}

/// Where a row lies in q or d_out. One that sees nothing is none: what stands there may be NaN.
REGARD_DEVICE_FN std::int64_t place_in(const problem::View& view, std::int64_t b,
                                       const cuda::RowFacts<float>& facts,
                                       const RowNumbers& numbers) {
  return numbers.inverse == 0.0f ? -1 : cuda::place_in(view, b, facts);
}

/// A probability, again from a score that is only scaled: -inf stands for one that is hidden.
/// kMarks: it gets the hidden value.
template <bool kMarks>
REGARD_DEVICE_FN float plain_prob(const Problem& p, const RowNumbers& row, float raw) {
  const float below = __builtin_fmaf(raw, p.softmax_scale_f32, -row.max);
  const float at_most_0 = below > 0.0f ? 0.0f : below;  // by a rounding; NaN stays
  const float power = cuda::exp2_flushed(at_most_0 * static_cast<float>(p.exp2_scale));
  const bool hidden = raw == cuda::minus_infinity<float>() || row.inverse == 0.0f;
  if (kMarks && hidden) return cuda::hidden_value<float>();
  return power * row.inverse;
}

/// Calls f(Safe, is_safe) for a block's sums: with is_safe where those without it are not finite.
/// Safe::kIs is false where is_safe is, as far as the compiler knows. Kernels with edits have one
/// copy of the code for both: two take minutes to compile.
template <bool kEdits, class Block, class Sums, class F>
REGARD_DEVICE_FN void compute_finite(const Block& block, const Sums& sums, F f) {
  if constexpr (kEdits) {
    bool is_safe = false;
    REGARD_DEVICE_NO_UNROLL
    for (;;) {
      f(Flag<true>(), is_safe);
      if (is_safe || !block.sync_or(has_non_finite(sums))) return;
      is_safe = true;
    }
  } else {
    f(Flag<false>(), false);
    if (block.sync_or(has_non_finite(sums))) f(Flag<true>(), true);
  }
}

/// The gradient of a scaled score, of a probability times softcap's slope, and of the gradient of
/// the dropped probability; what is hidden stays so.
REGARD_DEVICE_FN float grad_of_score(float prob, float d_prob, float delta) {
  return cuda::is_hidden(prob) ? prob : prob * (d_prob - delta);
}

}  // namespace regard::cuda_flash

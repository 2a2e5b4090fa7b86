#pragma once

#include <cstdint>

#include "cpu/forward/softmax.h"
#include "semantics/narrow_weights.h"

// Probabilities and dS rounded to 8 bits, in place. Their values stay floats: what 8 bits hold
// times a power of two.

namespace regard::cpu {

REGARD_KERNEL_FN constexpr semantics::NarrowFormat narrow_format(Element type) {
  return type == Element::kF8E5M2 ? semantics::kE5M2 : semantics::kE4M3;
}

/// The numbers that a value becomes one of: `fraction_bits` of fraction, and below `smallest`, a
/// power of two, the steps that are there.
struct Rounding {
  int fraction_bits;
  float smallest;
};

/// Of probabilities, which are at most 1.
REGARD_KERNEL_FN Rounding rounding_of_probs(Element type) {
  const semantics::NarrowFormat format = narrow_format(type);
  const int exponent = format.min_exponent - semantics::probs_offset(format);
  return {format.fraction_bits, static_cast<float>(semantics::power_of_two(exponent))};
}

/// x rounded to nearest, ties to even. A zero keeps its sign, an infinity becomes NaN.
template <class V>
REGARD_KERNEL_FN typename V::Vec round_fraction(typename V::Vec x, typename V::Vec smallest,
                                                int fraction_bits) {
  static_assert(sizeof(typename V::Scalar) == sizeof(float));
  constexpr int kFractionBits = 23;
  constexpr std::int32_t kSign = INT32_MIN, kExponent = 0x7f800000;
  const auto sign = V::to_bits(x) & kSign;
  const auto magnitude = V::from_bits(V::to_bits(x) & ~kSign);
  const auto power = V::from_bits(V::to_bits(V::max(magnitude, smallest)) & kExponent);
  // Beside it a float has the steps of the format, no finer ones.
  const auto coarse =
      power * V::set(static_cast<float>(std::int32_t{1} << (kFractionBits - fraction_bits)));
  return V::from_bits(V::to_bits((magnitude + coarse) - coarse) | sign);
}
template <class V>
REGARD_KERNEL_FN typename V::Vec round_fraction(typename V::Vec x, Rounding to) {
  return round_fraction<V>(x, V::set(to.smallest), to.fraction_bits);
}

/// 2^(x * factor), divided by the power of two at or above it: in (1/2, 1]. 1 where it has no
/// fraction.
template <class V>
REGARD_KERNEL_FN typename V::Vec exp2_fraction(typename V::Vec x, typename V::Vec factor) {
  const auto magic = V::set(12582912.0f), limit = V::set(4194304.0f);  // see exp2_nonpositive
  const auto shifted = V::fma(x, factor, magic);
  const auto nearest = V::fma(x, factor, magic - shifted);
  const auto below = V::select(nearest > V::set(0), nearest - V::set(1), nearest);
  const auto exponent = x * factor;
  const auto has_fraction = (exponent < limit) & (exponent > -limit);
  return exp2_nonpositive<V>(V::select(has_fraction, below, V::set(0)), V::set(1));
}

/// How a vector of rows' probabilities 2^((score - max) * factor) is rounded to 8 bits, or, not
/// kRounds, is not. What is rounded is 2^(score * factor) over a power of two, so that the result
/// does not depend on which maximum a row has so far.
template <class V, bool kRounds = true>
struct RoundProbs {
  typename V::Vec up, down;
  Rounding to;

  REGARD_KERNEL_FN RoundProbs of(Element type, typename V::Vec max, typename V::Vec factor) {
    const auto up = exp2_fraction<V>(max, factor);
    return {up, V::set(1) / up, rounding_of_probs(type)};
  }
  REGARD_KERNEL_FN typename V::Vec apply(const RoundProbs& by, typename V::Vec prob) {
    return round_fraction<V>(prob * by.up, by.to) * by.down;
  }
};
template <class V>
struct RoundProbs<V, false> {
  REGARD_KERNEL_FN RoundProbs of(Element, typename V::Vec, typename V::Vec) { return {}; }
  REGARD_KERNEL_FN typename V::Vec apply(const RoundProbs&, typename V::Vec prob) { return prob; }
};

/// Whether a product's scores are scaled by the loop that exponentiates them, as sinks want them:
/// nothing else edits them, and the greatest stays the greatest.
template <class V>
REGARD_KERNEL_FN bool scales_in_softmax(const Problem& p) {
  const bool has_edits = p.caps_scores || p.slopes.present || p.bias.present || p.edits_by_function;
  return p.prescale_scores && static_cast<typename V::Scalar>(p.softmax_scale) > 0 && !has_edits &&
         p.dropout.threshold == 0 && !rounds_probs(p);
}

/// max [W] of `vectors` vectors of scores becomes that of scaled ones.
template <class V>
REGARD_KERNEL_FN void scale_max(const Problem& p, int vectors, typename V::Scalar* max) {
  const auto scale = V::set(static_cast<typename V::Scalar>(p.softmax_scale));
  for (int at = 0; at < vectors * V::kLanes; at += V::kLanes) {
    V::store(max + at, V::load(max + at) * scale);
  }
}

/// exponentiate, with probabilities rounded where the problem wants it: state.sum grows by what
/// they are then.
template <class V, bool kMasked>
static void exponentiate_rounded(const Problem& p, std::int64_t size, typename V::Scalar* scores,
                                 RowBlock<V>* row_block) {
  if (!rounds_probs(p)) return exponentiate<V, kMasked>(p, size, scores, row_block);
  const RowState<V> before = row_block->state;
  exponentiate<V, kMasked>(p, size, scores, row_block);
  if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
    const auto factor = V::set(static_cast<float>(p.exp2_scale));
    for (int v = 0; v < row_block->vectors; ++v) {
      const int at = v * V::kLanes;
      const auto max = subtrahend<V>(V::load(row_block->state.max + at));
      const auto rounding = RoundProbs<V>::of(p.probs_type, max, factor);
      typename V::Vec sum{};
      for (std::int64_t j = 0; j < size; ++j) {
        float* const prob = scores + j * V::kWidth + at;
        const auto rounded = RoundProbs<V>::apply(rounding, V::load(prob));
        V::store(prob, rounded);
        sum += rounded;
      }
      V::store(row_block->state.sum + at, V::load(before.sum + at) + sum);
    }
  }
}

/// dS of a tile's keys are rounded; each row's steps follow from its largest one there. A row
/// without a finite largest one stays as it is.
template <class V>
static void round_d_scores(Element type, int vectors, std::int64_t size,
                           typename V::Scalar* d_scores) {
  if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
    const semantics::NarrowFormat format = narrow_format(type);
    const auto below = V::set(static_cast<float>(
        semantics::power_of_two(format.min_exponent - semantics::d_scores_exponent(format))));
    for (int v = 0; v < vectors; ++v) {
      float* const first = d_scores + v * V::kLanes;
      typename V::Vec largest{};
      for (std::int64_t j = 0; j < size; ++j) {
        const auto x = V::load(first + j * V::kWidth);
        largest = V::max(V::max(x, -x), largest);
      }
      const auto exponent = V::from_bits(V::to_bits(largest) & 0x7f800000);
      const auto is_finite = largest < V::set(__builtin_inff());
      for (std::int64_t j = 0; j < size; ++j) {
        float* const at = first + j * V::kWidth;
        const auto x = V::load(at);
        const auto rounded = round_fraction<V>(x, exponent * below, format.fraction_bits);
        V::store(at, V::select(is_finite, rounded, x));
      }
    }
  }
}

}  // namespace regard::cpu

#pragma once

#include "problem/problem.h"

namespace regard::problem {

/// A backward call as plain data. The forward's problem scales scores first, so that they and what
/// is saved of them are in natural units.
struct GradProblem {
  Problem problem{};
  View saved;  // [B,Hq,Sq,2]: row maximum and row sum; or [B,Hq,Sq]: lse
  bool saved_is_lse = false;
  View d_out;                 // [B,Hq,Sq,Dv]
  View delta, d_lse;          // [B,Hq,Sq]
  View descale_d_out;         // [B,Hkv], broadcast by strides
  View scales_d_out;          // as problem.scales_q
  View d_q, d_k, d_v;         // as q, k, v
  View gradient_scales;       // [3]: what d_q, d_k and d_v are multiplied by
  View gradient_amax;         // [3], f32: their largest magnitudes before that; 0 at first
  View d_bias;                // as problem.bias
  View d_sinks;               // [Hq]
  bool bias_is_full[4] = {};  // dimensions of attn_bias that are not broadcast
};

/// So are dS, to d_out's type.
REGARD_KERNEL_FN bool rounds_d_scores(const GradProblem& g) {
  return rounds_probs(g.problem) && is_8_bit_float(g.d_out.type);
}

/// The row maximum and sum of row (b, h, i); lse is the maximum of a sum of 1.
template <class T>
struct SavedRow {
  T max;
  T sum;  // 0: the row sees nothing
};

template <class T>
REGARD_KERNEL_FN SavedRow<T> saved_row(const GradProblem& g, std::int64_t b, std::int64_t h,
                                       std::int64_t i) {
  const T* const saved = element_at<T>(g.saved, row_index(g.saved, b, h, i));
  if (!g.saved_is_lse) return {saved[0], saved[g.saved.stride[3]]};
  return {saved[0], saved[0] == static_cast<T>(-__builtin_inf()) ? T(0) : T(1)};
}

/// A sink's share of a row's weights, e^(sink - lse).
template <class T>
REGARD_KERNEL_FN double sink_share(const SavedRow<T>& saved, T sink) {
  const double below = sink == saved.max ? 0.0 : static_cast<double>(sink - saved.max);
  return __builtin_exp(below) / static_cast<double>(saved.sum);
}

/// That of row (b, h, i); 0 without sinks.
template <class T>
REGARD_KERNEL_FN double sink_share(const GradProblem& g, std::int64_t b, std::int64_t h,
                                   std::int64_t i) {
  const View& sinks = g.problem.sinks;
  if (!sinks.present) return 0.0;
  const auto sink = static_cast<T>(*element_at<float>(sinks, h * sinks.stride[0]));
  return sink_share(saved_row<T>(g, b, h, i), sink);
}

/// *sum, that of P dP over row (b, h, i), whose P add up to `share`, becomes the row's delta.
/// False, and *sum as it was, where they are not all of the row's: an lse alone, and `out` with it,
/// may be merged from more keys than a call has; less than f16's rounding may be missing.
///
/// P and the sink's share add up to 1, but for scores that the forward summed in another order:
/// where one P is near 1, that would be all of dP - delta.
template <class T>
REGARD_KERNEL_FN bool complete_delta(const GradProblem& g, std::int64_t b, std::int64_t h,
                                     std::int64_t i, T share, T* sum) {
  const double of_sink = sink_share<T>(g, b, h, i);
  if (g.saved_is_lse && !(static_cast<double>(share) + of_sink > 1.0 - 0x1p-12)) return false;
  const T whole = share + static_cast<T>(of_sink);
  if (whole > T(0)) *sum /= whole;
  return true;
}

/// The gradients that gradient_scales and gradient_amax have an element each for.
enum class GradientOf : std::uint8_t { kQ = 0, kK, kV };

REGARD_KERNEL_FN double gradient_scale(const GradProblem& g, GradientOf of) {
  const View& scales = g.gradient_scales;
  if (!scales.present) return 1.0;
  return *element_at<float>(scales, static_cast<std::int64_t>(of) * scales.stride[0]);
}

#if !defined(__CUDACC__)
REGARD_KERNEL_FN void raise_amax(const GradProblem& g, GradientOf of, float magnitude) {
  raise_amax(g.gradient_amax, static_cast<std::int64_t>(of), magnitude);
}
#endif

/// Nothing is added to a scaled score but masks: scaling is then one operation with the subtraction
/// of the maximum.
REGARD_KERNEL_FN bool scales_late(const Problem& p) {
  return !p.caps_scores && !p.slopes.present && !p.bias.present && !p.edits_by_function;
}

}  // namespace regard::problem

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "oracle/gradients.h"
#include "oracle/number.h"
#include "oracle/row_gradient.h"

// How far rounding may move what one row adds to a gradient.

namespace regard::oracle {

// Probabilities below it may flush to 0.
inline constexpr double kFlushed = 0x1p-125;

/// How far one row's numbers may be from the truth: what each of its terms adds to a Conditioning.
struct RowSizes {
  double score_error;          // max(1, Smax)
  double flushed;              // the largest probability that may flush to 0
  double huge;                 // the error of a probability where scores are huge, else 0
  double u;                    // unit roundoff of the ideal's P
  double denormal;             // what rounding moves a number below the normal ones by
  double d_lse;                // |d_lse|
  double delta_deviation;      // of delta, from rounding out and the probabilities in it
  double d_scores_abs = 0.0;   // sum of |dS|: what the scores' errors do to delta
  double delta_abs = 0.0;      // sum of P |dP|
  double d_prob_max = 0.0;     // the largest |dP|; products are taken without their signs
  std::vector<double> d_prob;  // |dP| per visible key
};

/// One row's part in an element of a gradient.
struct Term {
  double value;
  double moved;            // |value|, and what delta moves with the scores
  double cancelled;        // before anything cancels
  double per_prob;         // that for P = 1
  double delta_deviation;  // of delta's part
  double per_score;        // |value| for dS = 1; 0 of a term without dS
};

inline double square(double x) { return x * x; }
/// 0 of anything is 0.
inline double times(double x, double y) { return x == 0.0 || y == 0.0 ? 0.0 : x * y; }

/// The derivative of an edited score, and its size before anything cancels, as
/// FunctionResult::slope_size.
struct Slope {
  double value;
  double size;
  /// What it may be in a kernel's arithmetic, at least 1.
  double largest(double u) const { return std::max(1.0, std::fabs(value) + 4.0 * u * size); }
};

inline void add(const Term& term, const RowSizes& row, Conditioning* c) {
  c->terms += 1;
  c->scores += term.moved * row.score_error;
  c->cancelled += term.cancelled;
  c->variance += square(row.u * term.value);
  c->delta_variance += square(term.delta_deviation);
  // dS is rounded, and its product.
  c->delta_variance += square(row.denormal) * (1.0 + square(term.per_score));
  c->flushed += term.per_prob * row.flushed;
  // A dropped probability's term is 0 whatever it was, were its error infinite.
  if (row.huge > 0.0 && term.per_prob > 0.0) c->huge += term.per_prob * row.huge;
}

/// How exact the row's probabilities can be.
template <class R>
RowSizes probability_sizes(const AttentionGradRequest& request, const Rules& rules,
                           const BackwardRow<R>& row) {
  const RowFacts f = row_facts(row.head, rules, row.result, row.seen, row.at.h, row.at.i);
  const Dtype dtype = request.q.dtype;
  const bool wide = dtype == Dtype::kF64;
  const bool from_lse = request.saved.kind == SavedContext::Kind::kLse;
  RowSizes s{};
  s.u = unit_roundoff(ideal_dtype_probs(request));
  s.denormal = half_of_smallest(wide ? Dtype::kF64 : Dtype::kF32);
  s.d_lse = std::fabs(static_cast<double>(row.up.d_lse));
  s.score_error = std::max({1.0, f.smax, std::fabs(f.row_max)});
  if (from_lse && std::isfinite(row.result.lse)) {
    s.score_error = std::max(s.score_error, std::fabs(static_cast<double>(row.result.lse)));
  }
  s.flushed = wide ? 0.0 : kFlushed;
  if (4.0 * unit_roundoff(wide ? Dtype::kF64 : Dtype::kF32) * s.score_error <= kStructuralFrom) {
    // Forward and backward sum q k in orders of their own (lanes along head_dim where rows are
    // few), so their errors do not cancel. The tolerance takes 4 of these: 2.8 deviations of the
    // two together.
    s.score_error = std::max(s.score_error, f.chain);
    return s;
  }
  // Equal scores are equal however they round, and their probabilities 1 / n; other rows may have
  // any from 0 to 1. From an lse that absorbed log(sum) all of a row's may be 1, and delta their
  // sum.
  const bool exact = f.equal_scores && !rules.has_sink() && !from_lse;
  s.score_error = 1.0;
  if (!exact) s.huge = from_lse ? HUGE_VAL : 1.0;
  return s;
}

template <class R>
RowSizes row_sizes(const AttentionGradRequest& request, const Rules& rules,
                   const BackwardRow<R>& row) {
  RowSizes s = probability_sizes(request, rules, row);
  const Dtype out_dtype = delta_dtype(request);
  double variance = 0.0;
  for (std::size_t d = 0; d < row.up.d_out.size(); ++d) {
    const double out = std::fabs(static_cast<double>(row.result.out[d]));
    const double rounded = unit_roundoff(out_dtype) * out + half_of_smallest(out_dtype);
    variance += square(static_cast<double>(row.up.d_out[d]) * rounded);
  }
  const std::vector<VisibleKey>& keys = row.seen.keys;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    double sum = 0.0, size = 0.0;
    for (std::size_t d = 0; d < row.up.d_out.size(); ++d) {
      const double product = static_cast<double>(row.up.d_out[d] * row.head.value(keys[n].j)[d]);
      sum += product;
      size += std::fabs(product);
    }
    const double p = static_cast<double>(row.result.probs[n]);
    variance += square(s.u * p * keys[n].dropout_factor * sum);
    s.d_prob.push_back(keys[n].dropout_factor * size);
    s.delta_abs += p * s.d_prob.back();
    s.d_prob_max = std::max(s.d_prob_max, s.d_prob.back());
    s.d_scores_abs += std::fabs(static_cast<double>(row.gradient.d_edited[n]));
  }
  s.delta_deviation = std::sqrt(variance);
  return s;
}

}  // namespace regard::oracle

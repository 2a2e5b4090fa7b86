#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "oracle/number.h"
#include "oracle/oracle.h"
#include "oracle/row.h"
#include "oracle/rules.h"

// One row's way back in any arithmetic, and how far rounding may move what it adds to a gradient.

namespace regard::oracle {

/// What a row's outputs pass back to it.
template <class R>
struct Upstream {
  std::vector<R> d_out;
  R d_lse;
  Dtype d_out_dtype;
};

/// The gradients of one row with respect to its probabilities and scores, per visible key.
template <class R>
struct RowGradient {
  std::vector<R> weights;           // of V: probabilities after dropout
  std::vector<R> d_edited;          // dS
  std::vector<R> d_scaled;          // dS through softcap
  std::vector<R> slopes;            // of softcap, 1 - tanh^2, and of functions
  std::vector<double> slope_sizes;  // as FunctionResult::slope_size: 1 without functions
  R d_sink = 0;
};

/// `value` as the pipeline stores it: kF64 stands for not rounded.
template <class R>
R stored(R value, Dtype dtype) {
  if (dtype == Dtype::kF64) return value;
  return static_cast<R>(round_to(static_cast<double>(value), dtype));
}

template <class R>
R softcap_slope(const Rules& rules, R scaled) {
  const R softcap = static_cast<R>(rules.request().options.softcap);
  if (!(softcap > 0) || rules.fault() == Fault::kSoftcapSlopeMissing) return R{1};
  const R tanh = std::tanh(scaled / softcap);
  return R{1} - tanh * tanh;
}

/// Dropout's factor on the way back.
inline double backward_factor(const Rules& rules, const VisibleKey& key) {
  if (rules.fault() != Fault::kGradDropoutNotScaled) return key.dropout_factor;
  return std::min(key.dropout_factor, 1.0);
}

/// dS of a row as floats of 8 bits, of which the largest decides what one stands for.
template <class R>
void round_d_scaled(Dtype dtype, std::vector<R>* d_scaled) {
  double largest = 0.0;
  for (const R x : *d_scaled) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  if (largest == 0.0 || !std::isfinite(largest)) return;
  const int exponent = largest_exponent(dtype) - 1 - std::ilogb(largest);
  for (R& x : *d_scaled) x = round_narrow(x, dtype, exponent);
}

template <class R>
RowGradient<R> differentiate(const Head<R>& head, const Rules& rules, const RowResult<R>& row,
                             const std::vector<VisibleKey>& keys, const Upstream<R>& up,
                             Dtype out_dtype) {
  RowGradient<R> g;
  R delta = 0;
  // A row that sees nothing has a constant output: whatever d_out holds, nothing comes of it.
  for (std::size_t d = 0; d < up.d_out.size() && !keys.empty(); ++d) {
    delta += up.d_out[d] * stored(row.out[d], out_dtype);
  }
  if (rules.fault() == Fault::kDeltaDropped) delta = 0;
  const R d_lse = rules.fault() == Fault::kLseGradIgnored ? R{0} : up.d_lse;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    R d_weight = 0;
    for (std::size_t d = 0; d < up.d_out.size(); ++d) {
      d_weight += up.d_out[d] * head.value(keys[n].j)[d];
    }
    const R factor = static_cast<R>(backward_factor(rules, keys[n]));
    // A dropped probability's value does not count, not even a NaN.
    const R d_prob = factor == 0 ? R{0} : factor * d_weight;
    const bool narrow = head.has_narrow_probs();  // then all of it is of rounded probabilities
    const R prob = narrow ? round_prob(head, row.probs[n], row.lse) : row.probs[n];
    const R d_edited = prob * (d_prob - delta + d_lse);
    g.slopes.push_back(softcap_slope(rules, row.scaled[n]));
    g.slope_sizes.push_back(1.0);
    if (!row.functions.empty() && rules.fault() != Fault::kFunctionSlopeIgnored) {
      g.slopes.back() *= row.functions[n].slope;
      g.slope_sizes.back() = row.functions[n].slope_size;
    }
    g.weights.push_back(round_prob(head, row.probs[n], row.lse) * factor);
    const Dtype dtype = narrow ? Dtype::kF64 : head.p_dtype;
    g.d_edited.push_back(stored(d_edited, dtype));
    g.d_scaled.push_back(stored(d_edited * g.slopes.back(), dtype));
  }
  if (head.has_narrow_probs() && size_of(up.d_out_dtype) == 1) {
    round_d_scaled(up.d_out_dtype, &g.d_scaled);
  }
  g.d_sink = row.sink_prob == 0 ? R{0} : row.sink_prob * (d_lse - delta);
  return g;
}

/// What `out` is stored as before delta is taken from it. Of 8 bits nothing would be left of delta:
/// it is taken from the probabilities then, unless it is given.
inline Dtype delta_dtype(const AttentionGradRequest& request) {
  const bool exact = size_of(request.out.dtype) == 1 && !request.delta.present();
  return exact ? Dtype::kF64 : request.out.dtype;
}

/// A row on its way back.
template <class R>
struct BackwardRow {
  const Head<R>& head;
  Place at;  // the key aside
  RowKeys seen;
  Upstream<R> up;
  RowResult<R> result;
  RowGradient<R> gradient;
};

/// What d_out of query head h is multiplied by, its scales aside.
inline double descale_of_d_out(const AttentionGradRequest& request, std::int64_t b,
                               std::int64_t h) {
  const TensorView& descale = request.descale_d_out;
  if (!descale.present()) return 1.0;
  const std::int64_t kv = h / (request.q.shape[1] / request.k.shape[1]);
  return descale.rank == 1 ? element(descale, 0) : element(descale, b, kv);
}

template <class R>
Upstream<R> upstream(const AttentionGradRequest& request, const Place& at, const Rules& rules) {
  Upstream<R> up{{}, R{0}, request.d_out.dtype};
  const double descale =
      rules.fault() == Fault::kGradDescaleIgnored ? 1.0 : descale_of_d_out(request, at.b, at.h);
  for (std::int64_t d = 0; d < request.v.shape[3]; ++d) {
    const double number = rules.number(request.d_out, request.scales_d_out, {at.b, at.h, at.i, d});
    up.d_out.push_back(static_cast<R>(number) * static_cast<R>(descale));
  }
  if (request.d_lse.present()) {
    up.d_lse = static_cast<R>(element(request.d_lse, at.b, at.h, at.i));
  }
  return up;
}

/// `out_dtype`: what `out` is stored as before delta is taken from it; kF64: not rounded.
template <class R>
BackwardRow<R> backward_row(const Head<R>& head, const Rules& rules,
                            const AttentionGradRequest& request, const Place& at,
                            const RowKeys& seen, Dtype out_dtype) {
  BackwardRow<R> row{head, at, seen, upstream<R>(request, at, rules), {}, {}};
  row.result = attend(head, rules, at, seen.keys, /*differentiates=*/true);
  row.gradient = differentiate(head, rules, row.result, seen.keys, row.up, out_dtype);
  return row;
}

}  // namespace regard::oracle

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#include "oracle/number.h"
#include "oracle/oracle.h"
#include "oracle/rules.h"

// One row of attention in any arithmetic: what the truth of the forward and of the gradients share.

namespace regard::oracle {

/// Whether q, k and v fit each other: what would make the oracle read out of bounds.
Status check_shapes(const AttentionRequest& request);

/// What the ideal pipeline rounds P to. 8 bits are storage, whose arithmetic is that of f32, unless
/// the call wants P in 8 bits.
inline Dtype ideal_dtype_probs(const AttentionRequest& request) {
  const bool narrow = size_of(request.q.dtype) == 1;
  return narrow && !request.options.quantize_probs ? Dtype::kF32 : request.q.dtype;
}

/// `value` as a float of 8 bits that stands for 2^-exponent times itself has it.
template <class R>
R round_narrow(R value, Dtype dtype, int exponent) {
  const double scaled = std::ldexp(static_cast<double>(value), exponent);
  return static_cast<R>(std::ldexp(round_to(scaled, dtype), -exponent));
}

/// The exponent of the largest number of a type.
inline int largest_exponent(Dtype dtype) { return std::ilogb(lowest(dtype)); }

/// One head of a [B,H,S,D] tensor: number(s, d) times factor(d), dense, in the arithmetic of the
/// loops.
template <class R, class Number, class Factor>
std::vector<R> head_of(const TensorView& view, Number number, Factor factor) {
  std::vector<R> rows;
  rows.reserve(static_cast<std::size_t>(view.shape[2] * view.shape[3]));
  for (std::int64_t s = 0; s < view.shape[2]; ++s) {
    for (std::int64_t d = 0; d < view.shape[3]; ++d) {
      rows.push_back(static_cast<R>(number(s, d)) * static_cast<R>(factor(d)));
    }
  }
  return rows;
}

/// What a row needs to know about a key that it sees.
struct VisibleKey {
  std::int64_t j;
  double bias, alibi, dropout_factor;
};

/// The keys that a row sees, and those of which a kernel's roundings decide.
struct RowKeys {
  std::vector<VisibleKey> keys;
  std::vector<std::int64_t> undecided;
};

/// q, k and v of one head, and what every row of it shares.
template <class R>
struct Head {
  std::vector<R> q, k, v;
  std::int64_t head_dim_qk, head_dim_v;
  Dtype p_dtype;  // P is rounded to it; kF64: not at all
  bool is_f64;    // what kernels compute in
  bool is_exact;  // the truth's arithmetic
  bool has_narrow_probs() const { return size_of(p_dtype) == 1; }

  const R* query(std::int64_t i) const { return q.data() + i * head_dim_qk; }
  const R* key(std::int64_t j) const { return k.data() + j * head_dim_qk; }
  const R* value(std::int64_t j) const { return v.data() + j * head_dim_v; }
};

template <class R>
struct RowResult {
  std::vector<R> out;
  R lse;
  std::vector<R> scaled;                     // per visible key: before the edits
  std::vector<R> edited;                     // per visible key
  std::vector<FunctionResult<R>> functions;  // per visible key; empty without functions
  std::vector<R> probs;                      // per visible key
  R sink_prob;  // what the sink takes of the row: all of it where no key is seen
};

template <class R>
R scaled_score(const Head<R>& head, const Rules& rules, std::int64_t i, std::int64_t j) {
  R dot = 0;
  for (std::int64_t d = 0; d < head.head_dim_qk; ++d) dot += head.query(i)[d] * head.key(j)[d];
  return static_cast<R>(rules.softmax_scale()) * dot;
}

template <class R>
R capped_score(R score, const Rules& rules) {
  const R softcap = static_cast<R>(rules.request().options.softcap);
  return softcap > 0 ? softcap * std::tanh(score / softcap) : score;
}

template <class R>
R edited_score(R score, const Rules& rules, const VisibleKey& key) {
  const R bias = static_cast<R>(key.bias);
  const bool bias_first = rules.fault() == Fault::kSoftcapAfterBias;
  if (bias_first) score += bias;
  score = capped_score(score, rules);
  if (!bias_first) score += bias;
  return score + static_cast<R>(key.alibi);
}

/// What rounding the products and sums of q k may do to a score, in units of roundoff.
template <class R>
double product_magnitude(const Head<R>& head, const Rules& rules, std::int64_t i, std::int64_t j) {
  R sum = 0;
  for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
    sum += std::fabs(head.query(i)[d] * head.key(j)[d]);
  }
  return std::fabs(rules.softmax_scale()) * static_cast<double>(sum);
}

/// The deviation of a score, in units of roundoff, where q k is summed element by element: each
/// partial sum s is rounded once, which moves it by s / sqrt(3) on average.
template <class R>
double chain_deviation(const Head<R>& head, const Rules& rules, std::int64_t i, std::int64_t j) {
  double sum = 0.0, squares = 0.0;
  for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
    sum += static_cast<double>(head.query(i)[d] * head.key(j)[d]);
    squares += sum * sum;
  }
  return std::fabs(rules.softmax_scale()) * std::sqrt(squares / 3.0);
}

/// How exact the score is that a function is given: `capped` is that of key j.
template <class R>
ScoreError score_error(const Head<R>& head, const Rules& rules, R capped, std::int64_t i,
                       std::int64_t j) {
  const double magnitude = product_magnitude(head, rules, i, j);
  ScoreError given{magnitude, 4.0, head.is_f64};
  // Values are exchanged by the errors of any order of the sums.
  const double chain = chain_deviation(head, rules, i, j);
  if (chain > magnitude) given.margin *= chain / magnitude;
  if (const double softcap = rules.request().options.softcap; softcap > 0.0) {
    constexpr double kTanhError = 6.0;
    const double value = std::fabs(static_cast<double>(capped));
    const double tanh = value / softcap;
    given.error = (1.0 - tanh * tanh) * magnitude + kTanhError * value;
  }
  return given;
}

/// The scaled score through softcap, score_function and score_callback.
template <class R>
FunctionResult<R> apply_functions(const Head<R>& head, const Rules& rules, R scaled,
                                  const Place& at, bool differentiates) {
  R score = capped_score(scaled, rules);
  if (rules.fault() == Fault::kFunctionAfterBias) {
    score += static_cast<R>(rules.bias(at)) + static_cast<R>(rules.alibi(at));
  }
  const FunctionPlace place = rules.function_place(at);
  if (!head.is_exact) return rules.functions().edit(place, score, nullptr, differentiates);
  const ScoreError given = score_error(head, rules, score, at.i, at.j);
  return rules.functions().edit(place, score, &given, differentiates);
}

/// Adds the scores of a row and its edits; their maximum.
template <class R>
R add_scores(const Head<R>& head, const Rules& rules, const Place& at,
             const std::vector<VisibleKey>& keys, bool differentiates, RowResult<R>* row) {
  R max = -std::numeric_limits<R>::infinity();
  for (const VisibleKey& key : keys) {
    row->scaled.push_back(scaled_score(head, rules, at.i, key.j));
    if (rules.edits_scores()) {
      row->functions.push_back(apply_functions(head, rules, row->scaled.back(),
                                               {at.b, at.h, at.i, key.j}, differentiates));
      const bool after_bias = rules.fault() == Fault::kFunctionAfterBias;
      const double added = after_bias ? 0.0 : key.bias;
      const double alibi = after_bias ? 0.0 : key.alibi;
      row->edited.push_back(row->functions.back().value + static_cast<R>(added) +
                            static_cast<R>(alibi));
    } else {
      row->edited.push_back(edited_score(row->scaled.back(), rules, key));
    }
    max = std::max(max, row->edited.back());
  }
  return max;
}

/// A probability of at most 1, e^score / e^max, as the ideal multiplies it. Of 8 bits, e^score is
/// rounded: over the power of two at or above e^max it is at most 1.
template <class R>
R round_prob(const Head<R>& head, R p, R max) {
  if (head.has_narrow_probs()) {
    const R exponent = max * static_cast<R>(std::numbers::log2e);
    const R up = std::isfinite(exponent) ? std::exp2(exponent - std::ceil(exponent)) : R{1};
    return round_narrow(p * up, head.p_dtype, largest_exponent(head.p_dtype)) / up;
  }
  if (head.p_dtype == Dtype::kF64) return p;
  return static_cast<R>(round_to(static_cast<double>(p), head.p_dtype));
}

/// Softmax and the product with V over the visible keys, in the arithmetic R. `at`: the key aside.
template <class R>
RowResult<R> attend(const Head<R>& head, const Rules& rules, const Place& at,
                    const std::vector<VisibleKey>& keys, bool differentiates = false) {
  RowResult<R> row;
  row.out.assign(static_cast<std::size_t>(head.head_dim_v), R{0});
  R max = add_scores(head, rules, at, keys, differentiates, &row);
  const R sink =
      rules.has_sink() ? static_cast<R>(rules.sink(at.h)) : -std::numeric_limits<R>::infinity();
  max = std::max(max, sink);
  // Nothing to attend to: 0, and the sink or -inf. A sink of +inf takes all weight.
  if (keys.empty() || sink == std::numeric_limits<R>::infinity()) {
    row.lse = sink;
    row.probs.assign(keys.size(), R{0});
    row.sink_prob = sink == -std::numeric_limits<R>::infinity() ? R{0} : R{1};
    return row;
  }
  R sum = std::exp(sink - max);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const R p = std::exp(row.edited[n] - max);
    row.probs.push_back(p);
    const R rounded = round_prob(head, p, max);
    sum += head.has_narrow_probs() ? rounded : p;
    const R weight = rounded * static_cast<R>(keys[n].dropout_factor);
    for (std::int64_t d = 0; d < head.head_dim_v; ++d)
      row.out[d] += weight * head.value(keys[n].j)[d];
  }
  for (R& o : row.out) o /= sum;
  for (R& p : row.probs) p /= sum;
  row.lse = max + std::log(sum);
  row.sink_prob = std::exp(sink - max) / sum;
  return row;
}

/// `p_dtype` of the truth: kF64.
template <class R>
Head<R> load_head(const Rules& rules, std::int64_t b, std::int64_t h, Dtype p_dtype) {
  const AttentionRequest& r = rules.request();
  const std::int64_t kv = rules.kv_head(h);
  const double descale_q = rules.descale(r.descale_q, b, kv);
  const double descale_k = rules.descale(r.descale_k, b, kv);
  const double descale_v =
      rules.fault() == Fault::kDescaleIgnored ? 1.0 : rules.descale(r.descale_v, b, kv);
  const auto of_q = [&](std::int64_t i, std::int64_t d) {
    return rules.number(r.q, r.scales_q, {b, h, i, d});
  };
  const auto of_k = [&](std::int64_t j, std::int64_t d) {
    return rules.number(r.k, r.scales_k, {b, kv, j, d});
  };
  const auto of_v = [&](std::int64_t j, std::int64_t d) {
    return rules.number(r.v, r.scales_v, {b, kv, j, d});
  };
  return {
      head_of<R>(r.q, of_q, [&](std::int64_t) { return descale_q; }),
      head_of<R>(r.k, of_k, [&](std::int64_t d) { return descale_k * rules.channel_scale(kv, d); }),
      head_of<R>(r.v, of_v, [&](std::int64_t) { return descale_v; }),
      r.q.shape[3],
      r.v.shape[3],
      p_dtype,
      r.q.dtype == Dtype::kF64,
      r.q.dtype != Dtype::kF64 ? std::is_same_v<R, double> : std::is_same_v<R, long double>};
}

/// The keys that no mask hides and whose score no function makes -inf. `head` is the exact one.
template <class R>
RowKeys visible_keys(const Head<R>& head, const Rules& rules, const Place& row) {
  RowKeys found;
  for (std::int64_t j = 0; j < rules.request().k.shape[2]; ++j) {
    const Place at{row.b, row.h, row.i, j};
    const Sight sight = rules.see(at);
    if (!sight.decided) found.undecided.push_back(j);
    if (!sight.visible) continue;
    if (rules.edits_scores()) {
      const R scaled = scaled_score(head, rules, at.i, j);
      const FunctionResult<R> result = apply_functions(head, rules, scaled, at, false);
      if (std::isfinite(scaled) && std::isinf(result.error)) found.undecided.push_back(j);
      if (result.value == -std::numeric_limits<R>::infinity()) continue;
    }
    found.keys.push_back({j, rules.bias(at), rules.alibi(at), rules.dropout_factor(at)});
  }
  return found;
}

template <class R>
void add_value_facts(const Head<R>& head, std::int64_t j, RowFacts* f) {
  for (std::int64_t d = 0; d < head.head_dim_v; ++d) {
    const double value = static_cast<double>(head.value(j)[d]);
    if (!std::isfinite(value)) {
      f->finite = false;
      continue;
    }
    f->max_abs_v = std::max(f->max_abs_v, std::fabs(value));
    f->min_v = std::min(f->min_v, value);
    f->max_v = std::max(f->max_v, value);
  }
}

/// The magnitude of what is summed to the edited score of visible key `n`: a function's error, or
/// its value where that is larger, takes the place of the product's.
template <class R>
double score_magnitude(const Head<R>& head, const Rules& rules, const RowResult<R>& row,
                       const std::vector<VisibleKey>& keys, std::size_t n, std::int64_t i) {
  const double added = std::fabs(keys[n].bias) + std::fabs(keys[n].alibi);
  if (row.functions.empty()) return product_magnitude(head, rules, i, keys[n].j) + added;
  const FunctionResult<R>& result = row.functions[n];
  return std::max(result.error, std::fabs(static_cast<double>(result.value))) + added;
}

template <class R>
RowFacts row_facts(const Head<R>& head, const Rules& rules, const RowResult<R>& row,
                   const RowKeys& seen, std::int64_t h, std::int64_t i) {
  const std::vector<VisibleKey>& keys = seen.keys;
  RowFacts f;
  f.undecided = !seen.undecided.empty();
  f.visible_keys = static_cast<std::int64_t>(keys.size());
  f.weight_sum_max = rules.dropout_keep_factor();
  double row_max = -std::numeric_limits<double>::infinity();
  for (const R score : row.edited) row_max = std::max(row_max, static_cast<double>(score));
  f.equal_scores = !keys.empty() && std::all_of(row.edited.begin(), row.edited.end(),
                                                [&](R s) { return s == row.edited.front(); });
  f.min_v = std::numeric_limits<double>::infinity();
  f.max_v = -std::numeric_limits<double>::infinity();
  for (std::size_t n = 0; n < keys.size(); ++n) {
    add_value_facts(head, keys[n].j, &f);
    const double smax = score_magnitude(head, rules, row, keys, n, i);
    f.finite = f.finite && std::isfinite(smax);
    if (std::isfinite(smax) && static_cast<double>(row.edited[n]) >= row_max - 104.0) {
      const double slope =
          row.functions.empty() ? 1.0 : std::fabs(static_cast<double>(row.functions[n].slope));
      f.smax = std::max(f.smax, smax);
      const double added = std::fabs(keys[n].bias) + std::fabs(keys[n].alibi);
      f.scaled_smax = std::max(f.scaled_smax, product_magnitude(head, rules, i, keys[n].j) + added);
      f.chain = std::max(f.chain, slope * chain_deviation(head, rules, i, keys[n].j));
    }
  }
  // A sink and dropout both take weight away from the keys; dropout also adds some.
  if (rules.has_sink() || rules.dropout_keep_factor() != 1.0 || keys.empty()) {
    f.min_v = std::min(f.min_v, 0.0) * f.weight_sum_max;
    f.max_v = std::max(f.max_v, 0.0) * f.weight_sum_max;
  }
  double squares = 0.0;
  for (const R p : row.probs) squares += static_cast<double>(p) * static_cast<double>(p);
  f.prob_spread = std::sqrt(squares);
  if (rules.has_sink()) row_max = std::max(row_max, rules.sink(h));
  f.row_max = std::isfinite(row_max) ? row_max : 0.0;
  return f;
}

}  // namespace regard::oracle

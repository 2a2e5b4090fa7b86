#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "oracle/number.h"
#include "oracle/oracle.h"
#include "oracle/rules.h"

// One row of attention in any arithmetic: what the truth of the forward and of the gradients share.

namespace regard::oracle {

/// Whether q, k and v fit each other: what would make the oracle read out of bounds.
Status check_shapes(const AttentionRequest& request);

/// What the ideal pipeline rounds P to. 8 bits are storage: their arithmetic is that of f32.
inline Dtype ideal_dtype_probs(Dtype dtype_q) {
  return size_of(dtype_q) == 1 ? Dtype::kF32 : dtype_q;
}

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

/// q, k and v of one head, and what every row of it shares.
template <class R>
struct Head {
  std::vector<R> q, k, v;
  std::int64_t head_dim_qk, head_dim_v;
  Dtype p_dtype;  // P is rounded to it; kF64: not at all

  const R* query(std::int64_t i) const { return q.data() + i * head_dim_qk; }
  const R* key(std::int64_t j) const { return k.data() + j * head_dim_qk; }
  const R* value(std::int64_t j) const { return v.data() + j * head_dim_v; }
};

template <class R>
struct RowResult {
  std::vector<R> out;
  R lse;
  std::vector<R> scaled;  // per visible key: before the edits
  std::vector<R> edited;  // per visible key
  std::vector<R> probs;   // per visible key
  R sink_prob;            // what the sink takes of the row: all of it where no key is seen
};

template <class R>
R scaled_score(const Head<R>& head, const Rules& rules, std::int64_t i, std::int64_t j) {
  R dot = 0;
  for (std::int64_t d = 0; d < head.head_dim_qk; ++d) dot += head.query(i)[d] * head.key(j)[d];
  return static_cast<R>(rules.softmax_scale()) * dot;
}

template <class R>
R edited_score(R score, const Rules& rules, const VisibleKey& key) {
  const R bias = static_cast<R>(key.bias);
  const R softcap = static_cast<R>(rules.request().options.softcap);
  const bool bias_first = rules.fault() == Fault::kSoftcapAfterBias;
  if (bias_first) score += bias;
  if (softcap > 0) score = softcap * std::tanh(score / softcap);
  if (!bias_first) score += bias;
  return score + static_cast<R>(key.alibi);
}

/// Softmax and the product with V over the visible keys, in the arithmetic R.
template <class R>
RowResult<R> attend(const Head<R>& head, const Rules& rules, std::int64_t h, std::int64_t i,
                    const std::vector<VisibleKey>& keys) {
  RowResult<R> row;
  row.out.assign(static_cast<std::size_t>(head.head_dim_v), R{0});
  R max = -std::numeric_limits<R>::infinity();
  for (const VisibleKey& key : keys) {
    row.scaled.push_back(scaled_score(head, rules, i, key.j));
    row.edited.push_back(edited_score(row.scaled.back(), rules, key));
    max = std::max(max, row.edited.back());
  }
  const R sink =
      rules.has_sink() ? static_cast<R>(rules.sink(h)) : -std::numeric_limits<R>::infinity();
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
    sum += p;
    row.probs.push_back(p);
    const R rounded = head.p_dtype == Dtype::kF64
                          ? p
                          : static_cast<R>(round_to(static_cast<double>(p), head.p_dtype));
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
  const auto of_q = [&](std::int64_t i, std::int64_t d) { return element(r.q, b, h, i, d); };
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
      p_dtype};
}

inline std::vector<VisibleKey> visible_keys(const Rules& rules, std::int64_t b, std::int64_t h,
                                            std::int64_t i) {
  std::vector<VisibleKey> keys;
  for (std::int64_t j = 0; j < rules.request().k.shape[2]; ++j) {
    const Place at{b, h, i, j};
    if (!rules.visible(at)) continue;
    keys.push_back({j, rules.bias(at), rules.alibi(at), rules.dropout_factor(at)});
  }
  return keys;
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

template <class R>
double score_magnitude(const Head<R>& head, const Rules& rules, const VisibleKey& key,
                       std::int64_t i) {
  R sum = 0;
  for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
    sum += std::fabs(head.query(i)[d] * head.key(key.j)[d]);
  }
  return std::fabs(rules.softmax_scale()) * static_cast<double>(sum) + std::fabs(key.bias) +
         std::fabs(key.alibi);
}

/// The deviation of a score, in units of roundoff, where q k is summed element by element: each
/// partial sum s is rounded once, which moves it by s / sqrt(3) on average.
template <class R>
double chain_deviation(const Head<R>& head, const Rules& rules, const VisibleKey& key,
                       std::int64_t i) {
  double sum = 0.0, squares = 0.0;
  for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
    sum += static_cast<double>(head.query(i)[d] * head.key(key.j)[d]);
    squares += sum * sum;
  }
  return std::fabs(rules.softmax_scale()) * std::sqrt(squares / 3.0);
}

template <class R>
RowFacts row_facts(const Head<R>& head, const Rules& rules, const RowResult<R>& row,
                   const std::vector<VisibleKey>& keys, std::int64_t h, std::int64_t i) {
  RowFacts f;
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
    const double smax = score_magnitude(head, rules, keys[n], i);
    f.finite = f.finite && std::isfinite(smax);
    if (std::isfinite(smax) && static_cast<double>(row.edited[n]) >= row_max - 104.0) {
      f.smax = std::max(f.smax, smax);
      f.chain = std::max(f.chain, chain_deviation(head, rules, keys[n], i));
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

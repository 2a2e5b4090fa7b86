#include "oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One head of a [B,H,S,D] tensor, dense, in the arithmetic of the loops.
template <class R>
std::vector<R> head_of(const TensorView& view, std::int64_t b, std::int64_t h) {
  std::vector<R> rows;
  rows.reserve(static_cast<std::size_t>(view.shape[2] * view.shape[3]));
  for (std::int64_t s = 0; s < view.shape[2]; ++s) {
    for (std::int64_t d = 0; d < view.shape[3]; ++d) {
      rows.push_back(static_cast<R>(element(view, b, h, s, d)));
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
  std::vector<R> edited;  // per visible key
  std::vector<R> probs;   // per visible key
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
    row.edited.push_back(edited_score(scaled_score(head, rules, i, key.j), rules, key));
    max = std::max(max, row.edited.back());
  }
  const R sink = rules.has_sink() ? static_cast<R>(rules.sink(h)) : static_cast<R>(-kInfinity);
  max = std::max(max, sink);
  // Nothing to attend to: 0, and the sink or -inf. A sink of +inf takes all weight.
  if (keys.empty() || sink == static_cast<R>(kInfinity)) {
    row.lse = sink;
    row.probs.assign(keys.size(), R{0});
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
  return row;
}

/// Everything about one problem that does not depend on the arithmetic.
class Computation {
 public:
  Computation(const AttentionRequest& request, Fault fault)
      : request_(request), rules_(request, fault) {
    truth_.batch = request.q.shape[0];
    truth_.num_heads = request.q.shape[1];
    truth_.seqlen_q = request.q.shape[2];
    truth_.seqlen_kv = request.k.shape[2];
    truth_.head_dim_v = request.v.shape[3];
    truth_.dtype = request.q.dtype;
    truth_.scores_kind = request.options.scores_kind;
  }

  /// Exact is the arithmetic of the truth, Ideal that of the ideal pipeline.
  template <class Exact, class Ideal>
  Truth run() {
    for (std::int64_t b = 0; b < truth_.batch; ++b) {
      for (std::int64_t h = 0; h < truth_.num_heads; ++h) {
        const Head<Exact> exact = load<Exact>(b, h, Dtype::kF64);
        const Head<Ideal> ideal = load<Ideal>(b, h, request_.q.dtype);
        for (std::int64_t i = 0; i < truth_.seqlen_q; ++i) add_row(exact, ideal, b, h, i);
      }
    }
    return std::move(truth_);
  }

 private:
  template <class R>
  Head<R> load(std::int64_t b, std::int64_t h, Dtype p_dtype) const {
    const std::int64_t kv = rules_.kv_head(h);
    return {head_of<R>(request_.q, b, h),  head_of<R>(request_.k, b, kv),
            head_of<R>(request_.v, b, kv), request_.q.shape[3],
            request_.v.shape[3],           p_dtype};
  }

  std::vector<VisibleKey> visible_keys(std::int64_t b, std::int64_t h, std::int64_t i) const {
    std::vector<VisibleKey> keys;
    for (std::int64_t j = 0; j < truth_.seqlen_kv; ++j) {
      const Place at{b, h, i, j};
      if (!rules_.visible(at)) continue;
      keys.push_back({j, rules_.bias(at), rules_.alibi(at), rules_.dropout_factor(at)});
    }
    return keys;
  }

  template <class Exact, class Ideal>
  void add_row(const Head<Exact>& exact, const Head<Ideal>& ideal, std::int64_t b, std::int64_t h,
               std::int64_t i) {
    const std::vector<VisibleKey> keys = visible_keys(b, h, i);
    const bool padding = i >= rules_.len_q(b);
    RowResult<Exact> row;
    RowResult<Ideal> row_ideal;
    if (padding) {
      row.out.assign(static_cast<std::size_t>(truth_.head_dim_v), Exact{0});
      row_ideal.out.assign(static_cast<std::size_t>(truth_.head_dim_v), Ideal{0});
      row.lse = static_cast<Exact>(-kInfinity);
      row_ideal.lse = static_cast<Ideal>(-kInfinity);
    } else {
      row = attend(exact, rules_, h, i, keys);
      row_ideal = attend(ideal, rules_, h, i, keys);
    }
    if (keys.empty() && !padding && rules_.fault() == Fault::kDeadRowMean)
      plant_mean(exact, &row.out);
    truth_.out.insert(truth_.out.end(), row.out.begin(), row.out.end());
    truth_.out_ideal.insert(truth_.out_ideal.end(), row_ideal.out.begin(), row_ideal.out.end());
    if (rules_.fault() == Fault::kLseBase2) {
      row.lse /= std::log(Exact{2});
      row_ideal.lse /= std::log(Ideal{2});
    }
    truth_.lse.push_back(row.lse);
    truth_.lse_ideal.push_back(row_ideal.lse);
    truth_.rows.push_back(facts(exact, row, keys, h, i));
    truth_.rows.back().padding = padding;
    if (truth_.scores_kind != ScoresKind::kNone) add_scores(exact, ideal, row, row_ideal, keys, i);
  }

  template <class R>
  void plant_mean(const Head<R>& head, std::vector<R>* out) const {
    for (std::int64_t j = 0; j < truth_.seqlen_kv; ++j) {
      for (std::int64_t d = 0; d < head.head_dim_v; ++d) {
        (*out)[d] += head.value(j)[d] / static_cast<R>(truth_.seqlen_kv);
      }
    }
  }

  template <class R>
  RowFacts facts(const Head<R>& head, const RowResult<R>& row, const std::vector<VisibleKey>& keys,
                 std::int64_t h, std::int64_t i) const {
    RowFacts f;
    f.visible_keys = static_cast<std::int64_t>(keys.size());
    f.weight_sum_max = rules_.dropout_keep_factor();
    double row_max = -kInfinity;
    for (const R score : row.edited) row_max = std::max(row_max, static_cast<double>(score));
    f.equal_scores = !keys.empty() && std::all_of(row.edited.begin(), row.edited.end(),
                                                  [&](R s) { return s == row.edited.front(); });
    f.min_v = kInfinity;
    f.max_v = -kInfinity;
    for (std::size_t n = 0; n < keys.size(); ++n) {
      add_value_facts(head, keys[n].j, &f);
      const double smax = score_magnitude(head, keys[n], i);
      f.finite = f.finite && std::isfinite(smax);
      if (std::isfinite(smax) && static_cast<double>(row.edited[n]) >= row_max - 104.0) {
        f.smax = std::max(f.smax, smax);
      }
    }
    // A sink and dropout both take weight away from the keys; dropout also adds some.
    if (rules_.has_sink() || rules_.dropout_keep_factor() != 1.0 || keys.empty()) {
      f.min_v = std::min(f.min_v, 0.0) * f.weight_sum_max;
      f.max_v = std::max(f.max_v, 0.0) * f.weight_sum_max;
    }
    double squares = 0.0;
    for (const R p : row.probs) squares += static_cast<double>(p) * static_cast<double>(p);
    f.prob_spread = std::sqrt(squares);
    if (rules_.has_sink()) row_max = std::max(row_max, rules_.sink(h));
    f.row_max = std::isfinite(row_max) ? row_max : 0.0;
    return f;
  }

  template <class R>
  void add_value_facts(const Head<R>& head, std::int64_t j, RowFacts* f) const {
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
  double score_magnitude(const Head<R>& head, const VisibleKey& key, std::int64_t i) const {
    R sum = 0;
    for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
      sum += std::fabs(head.query(i)[d] * head.key(key.j)[d]);
    }
    return std::fabs(rules_.softmax_scale()) * static_cast<double>(sum) + std::fabs(key.bias) +
           std::fabs(key.alibi);
  }

  template <class Exact, class Ideal>
  void add_scores(const Head<Exact>& exact, const Head<Ideal>& ideal, const RowResult<Exact>& row,
                  const RowResult<Ideal>& row_ideal, const std::vector<VisibleKey>& keys,
                  std::int64_t i) {
    const double hidden = truth_.scores_kind == ScoresKind::kEdited ? -kInfinity : 0.0;
    const std::size_t start = truth_.scores.size();
    const std::size_t end = start + static_cast<std::size_t>(truth_.seqlen_kv);
    truth_.scores.resize(end, hidden);
    truth_.scores_ideal.resize(end, hidden);
    truth_.visible.resize(end, 0);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const std::size_t at = start + static_cast<std::size_t>(keys[n].j);
      truth_.visible[at] = 1;
      switch (truth_.scores_kind) {
        case ScoresKind::kNone: break;
        case ScoresKind::kScaled:
          truth_.scores[at] = scaled_score(exact, rules_, i, keys[n].j);
          truth_.scores_ideal[at] = scaled_score(ideal, rules_, i, keys[n].j);
          break;
        case ScoresKind::kEdited:
          truth_.scores[at] = row.edited[n];
          truth_.scores_ideal[at] = row_ideal.edited[n];
          break;
        case ScoresKind::kProbs:
          truth_.scores[at] = row.probs[n];
          truth_.scores_ideal[at] = row_ideal.probs[n];
          break;
      }
    }
  }

  const AttentionRequest& request_;
  Rules rules_;
  Truth truth_;
};

Status check_shapes(const AttentionRequest& request) {
  const TensorView* views[] = {&request.q, &request.k, &request.v};
  for (const TensorView* view : views) {
    if (view->rank != 4 || !is_known(view->dtype)) {
      return Status(
          StatusCode::kInvalidArgument,
          "[oracle] q, k and v need rank 4 and a known dtype, one is " + to_string(*view));
    }
  }
  const std::int64_t *q = request.q.shape, *k = request.k.shape, *v = request.v.shape;
  const bool heads_fit = k[1] == 0 ? q[1] == 0 : q[1] % k[1] == 0;
  if (q[0] != k[0] || k[0] != v[0] || !heads_fit || k[1] != v[1] || k[2] != v[2] || q[3] != k[3]) {
    return Status(StatusCode::kInvalidArgument,
                  "[oracle] shapes do not fit each other: q " + to_string(request.q) + ", k " +
                      to_string(request.k) + ", v " + to_string(request.v));
  }
  return {};
}

}  // namespace

Expected<Truth> compute(const AttentionRequest& request, Fault fault) {
  if (Status status = check_shapes(request); !status.ok()) return status;
  Computation computation(request, fault);
  if (request.q.dtype == Dtype::kF64) return computation.run<long double, double>();
  return computation.run<double, float>();
}

}  // namespace regard::oracle

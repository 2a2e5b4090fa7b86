#include "oracle/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "oracle/number.h"
#include "oracle/row.h"
#include "oracle/rules.h"

namespace regard::oracle {
namespace {

// Probabilities below it may flush to 0.
constexpr double kFlushed = 0x1p-125;

/// What a row's outputs pass back to it.
template <class R>
struct Upstream {
  std::vector<R> d_out;
  R d_lse;
};

/// The gradients of one row with respect to its probabilities and scores, per visible key.
template <class R>
struct RowGradient {
  std::vector<R> weights;   // of V: probabilities after dropout
  std::vector<R> d_edited;  // dS
  std::vector<R> d_scaled;  // dS through softcap
  std::vector<R> slopes;    // of softcap: 1 - tanh^2, or 1
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
double backward_factor(const Rules& rules, const VisibleKey& key) {
  if (rules.fault() != Fault::kGradDropoutNotScaled) return key.dropout_factor;
  return std::min(key.dropout_factor, 1.0);
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
    const R d_edited = row.probs[n] * (d_prob - delta + d_lse);
    g.slopes.push_back(softcap_slope(rules, row.scaled[n]));
    g.weights.push_back(stored(row.probs[n], head.p_dtype) * factor);
    g.d_edited.push_back(stored(d_edited, head.p_dtype));
    g.d_scaled.push_back(stored(d_edited * g.slopes.back(), head.p_dtype));
  }
  g.d_sink = row.sink_prob == 0 ? R{0} : row.sink_prob * (d_lse - delta);
  return g;
}

/// How far one row's numbers may be from the truth: what each of its terms adds to a Conditioning.
struct RowSizes {
  double score_error;          // max(1, Smax)
  double flushed;              // the largest probability that may flush to 0
  double huge;                 // the error of a probability where scores are huge, else 0
  double delta_rounding;       // deviation of delta from rounding out to its dtype
  double d_lse;                // |d_lse|
  double u;                    // unit roundoff of q's dtype
  double delta_abs = 0.0;      // sum of P |dP|
  double d_prob_max = 0.0;     // the largest |dP|, its products taken without their signs
  std::vector<double> d_prob;  // per visible key
};

/// A term of an element: its value, its size before anything cancels, and that size for P = 1.
struct Term {
  double value, cancelled, per_prob;
  double delta_rounding;
};

double square(double x) { return x * x; }

void add(const Term& term, const RowSizes& row, Conditioning* c) {
  c->terms += 1;
  c->scores += std::fabs(term.value) * row.score_error;
  c->cancelled += term.cancelled;
  c->variance += square(row.u * term.value) + square(term.delta_rounding);
  c->flushed += term.per_prob * row.flushed;
  // A dropped probability's term is 0 whatever it was, were its error infinite.
  if (row.huge > 0.0 && term.per_prob > 0.0) c->huge += term.per_prob * row.huge;
}

class Gradients {
 public:
  Gradients(const AttentionGradRequest& request, Fault fault)
      : request_(request), rules_(request, fault) {
    truth_.dtype = request.q.dtype;
    resize(&truth_.d_q, request.q);
    resize(&truth_.d_k, request.k);
    resize(&truth_.d_v, request.v);
    if (request.attn_bias.present()) resize(&truth_.d_bias, request.attn_bias);
    if (request.sinks.present()) resize(&truth_.d_sinks, {1, 1, 1, request.q.shape[1]});
  }

  template <class Exact, class Ideal>
  GradTruth run() {
    for (std::int64_t b = 0; b < request_.q.shape[0]; ++b) {
      for (std::int64_t h = 0; h < request_.q.shape[1]; ++h) {
        const Head<Exact> exact = load_head<Exact>(rules_, b, h, Dtype::kF64);
        const Head<Ideal> ideal = load_head<Ideal>(rules_, b, h, request_.q.dtype);
        for (std::int64_t i = 0; i < rules_.len_q(b); ++i) add_row(exact, ideal, {b, h, i, 0});
      }
    }
    return std::move(truth_);
  }

 private:
  static void resize(Gradient* g, const std::vector<std::int64_t>& shape) {
    std::copy(shape.begin(), shape.end(), g->shape);
    const auto n = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
    g->exact.resize(n);
    g->ideal.resize(n);
    g->sizes.resize(n);
  }
  static void resize(Gradient* g, const TensorView& like) {
    resize(g, {like.shape[0], like.shape[1], like.shape[2], like.shape[3]});
  }

  template <class Exact, class Ideal>
  void add_row(const Head<Exact>& exact, const Head<Ideal>& ideal, const Place& at) {
    const std::vector<VisibleKey> keys = visible_keys(rules_, at.b, at.h, at.i);
    const Dtype out_dtype = request_.out.dtype;
    const RowResult<Exact> row = attend(exact, rules_, at.h, at.i, keys);
    const RowResult<Ideal> row_ideal = attend(ideal, rules_, at.h, at.i, keys);
    const auto up = upstream<Exact>(at);
    const auto g = differentiate(exact, rules_, row, keys, up, Dtype::kF64);
    const auto g_ideal =
        differentiate(ideal, rules_, row_ideal, keys, upstream<Ideal>(at), out_dtype);
    add_terms(exact, keys, up, g, at,
              [](Gradient* to, std::size_t n, Exact term) { to->exact[n] += term; });
    add_terms(ideal, keys, upstream<Ideal>(at), g_ideal, at,
              [](Gradient* to, std::size_t n, Ideal term) {
                to->ideal[n] = static_cast<Ideal>(to->ideal[n]) + term;
              });
    add_sizes(exact, keys, row, g, up, at);
  }

  template <class R>
  Upstream<R> upstream(const Place& at) const {
    Upstream<R> up{{}, R{0}};
    for (std::int64_t d = 0; d < request_.v.shape[3]; ++d) {
      up.d_out.push_back(static_cast<R>(element(request_.d_out, at.b, at.h, at.i, d)));
    }
    if (request_.d_lse.present()) {
      up.d_lse = static_cast<R>(element(request_.d_lse, at.b, at.h, at.i));
    }
    return up;
  }

  bool skips_group_member(std::int64_t h) const {
    const std::int64_t group = request_.q.shape[1] / request_.k.shape[1];
    return rules_.fault() == Fault::kGroupNotSummed && h % group != 0;
  }

  /// Where the bias of a place lies; false where a planted fault leaves the place out.
  bool bias_index(const Place& at, std::int64_t j, std::size_t* index) const {
    const std::int64_t full[] = {at.b, at.h, at.i, j};
    std::int64_t own[kMaxRank];
    bool first = true;
    for (int dim = 0; dim < kMaxRank; ++dim) {
      own[dim] = truth_.d_bias.shape[dim] == 1 ? 0 : full[dim];
      first = first && own[dim] == full[dim];
    }
    *index = truth_.d_bias.index(own[0], own[1], own[2], own[3]);
    return first || rules_.fault() != Fault::kBiasGradNotReduced;
  }

  /// Calls add(gradient, index, term) for every term of the row.
  template <class R, class F>
  void add_terms(const Head<R>& head, const std::vector<VisibleKey>& keys, const Upstream<R>& up,
                 const RowGradient<R>& g, const Place& at, F&& add_term) {
    const std::int64_t kv = rules_.kv_head(at.h);
    const R scale = static_cast<R>(rules_.softmax_scale());
    const R scale_k = rules_.fault() == Fault::kKeyGradNotScaled ? R{1} : scale;
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const std::int64_t j = keys[n].j;
      const std::size_t q = truth_.d_q.index(at.b, at.h, at.i, 0);
      const std::size_t k = truth_.d_k.index(at.b, kv, j, 0);
      const std::size_t v = truth_.d_v.index(at.b, kv, j, 0);
      for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
        const auto e = static_cast<std::size_t>(d);
        add_term(&truth_.d_q, q + e, scale * (g.d_scaled[n] * head.key(j)[d]));
        if (skips_group_member(at.h)) continue;
        add_term(&truth_.d_k, k + e, scale_k * (g.d_scaled[n] * head.query(at.i)[d]));
      }
      for (std::size_t e = 0; e < up.d_out.size() && !skips_group_member(at.h); ++e) {
        add_term(&truth_.d_v, v + e, g.weights[n] * up.d_out[e]);
      }
      std::size_t bias = 0;
      if (request_.attn_bias.present() && bias_index(at, j, &bias)) {
        add_term(&truth_.d_bias, bias, g.d_edited[n]);
      }
    }
    if (rules_.has_sink()) {
      add_term(&truth_.d_sinks, static_cast<std::size_t>(at.h), g.d_sink);
    }
  }

  template <class R>
  RowSizes row_sizes(const Head<R>& head, const std::vector<VisibleKey>& keys,
                     const RowResult<R>& row, const Upstream<R>& up, const Place& at) const {
    const RowFacts f = row_facts(head, rules_, row, keys, at.h, at.i);
    const bool wide = truth_.dtype == Dtype::kF64;
    const bool from_lse = request_.saved.kind == SavedContext::Kind::kLse;
    RowSizes s{};
    s.u = unit_roundoff(truth_.dtype);
    s.d_lse = std::fabs(static_cast<double>(up.d_lse));
    s.score_error = std::max({1.0, f.smax, std::fabs(f.row_max)});
    if (from_lse && std::isfinite(row.lse)) {
      s.score_error = std::max(s.score_error, std::fabs(static_cast<double>(row.lse)));
    }
    s.flushed = wide ? 0.0 : kFlushed;
    if (4.0 * unit_roundoff(wide ? Dtype::kF64 : Dtype::kF32) * s.score_error > kStructuralFrom) {
      // Equal scores are equal however they round, and their probabilities 1 / n; other rows may
      // have any, and P = exp(score - lse) may even exceed 1.
      const bool exact = f.equal_scores && !rules_.has_sink() && !from_lse;
      s.score_error = 1.0;
      if (!exact) s.huge = from_lse ? HUGE_VAL : 1.0;
    }
    const Dtype out_dtype = request_.out.dtype;
    double squares = 0.0;
    for (std::size_t d = 0; d < up.d_out.size(); ++d) {
      const double out = std::fabs(static_cast<double>(row.out[d]));
      const double rounded = unit_roundoff(out_dtype) * out + half_of_smallest(out_dtype);
      squares += square(static_cast<double>(up.d_out[d]) * rounded);
    }
    s.delta_rounding = std::sqrt(squares);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      double sum = 0.0;
      for (std::size_t d = 0; d < up.d_out.size(); ++d) {
        sum += std::fabs(static_cast<double>(up.d_out[d] * head.value(keys[n].j)[d]));
      }
      s.d_prob.push_back(keys[n].dropout_factor * sum);
      s.delta_abs += static_cast<double>(row.probs[n]) * s.d_prob.back();
      s.d_prob_max = std::max(s.d_prob_max, s.d_prob.back());
    }
    return s;
  }

  template <class R>
  void add_sizes(const Head<R>& head, const std::vector<VisibleKey>& keys, const RowResult<R>& row,
                 const RowGradient<R>& g, const Upstream<R>& up, const Place& at) {
    const RowSizes s = row_sizes(head, keys, row, up, at);
    const std::int64_t kv = rules_.kv_head(at.h);
    const double scale = rules_.softmax_scale();
    // An error of delta is the same for every key of the row: it adds up before it is squared.
    std::vector<double> delta_to_q(static_cast<std::size_t>(head.head_dim_qk));
    double delta_to_bias = 0.0;
    const bool over_keys = truth_.d_bias.shape[3] == 1;
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const std::int64_t j = keys[n].j;
      const double p = static_cast<double>(row.probs[n]);
      const double before = s.d_prob[n] + s.delta_abs + s.d_lse;
      const double at_most = s.d_prob[n] + s.d_prob_max + s.d_lse;
      const double slope = static_cast<double>(g.slopes[n]);
      const auto ds_term = [&](double d_score, double factor) {
        const double size = std::fabs(factor);
        return Term{d_score * factor, p * before * size, at_most * size, 0.0};
      };
      for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
        const auto e = static_cast<std::size_t>(d);
        const double k = scale * static_cast<double>(head.key(j)[d]);
        const double q = scale * static_cast<double>(head.query(at.i)[d]);
        const double d_scaled = static_cast<double>(g.d_scaled[n]);
        add(ds_term(d_scaled, k), s, &truth_.d_q.sizes[truth_.d_q.index(at.b, at.h, at.i, d)]);
        delta_to_q[e] += p * slope * k;
        Term to_k = ds_term(d_scaled, q);
        to_k.delta_rounding = s.delta_rounding * p * slope * q;
        add(to_k, s, &truth_.d_k.sizes[truth_.d_k.index(at.b, kv, j, d)]);
      }
      for (std::size_t e = 0; e < up.d_out.size(); ++e) {
        const double d_out = std::fabs(static_cast<double>(up.d_out[e]));
        add({static_cast<double>(g.weights[n]) * d_out, 0.0, keys[n].dropout_factor * d_out, 0.0},
            s, &truth_.d_v.sizes[truth_.d_v.index(at.b, kv, j, 0) + e]);
      }
      std::size_t bias = 0;
      if (request_.attn_bias.present() && bias_index(at, j, &bias)) {
        Term to_bias = ds_term(static_cast<double>(g.d_edited[n]), 1.0);
        if (over_keys) delta_to_bias += p;
        if (!over_keys) to_bias.delta_rounding = s.delta_rounding * p;
        add(to_bias, s, &truth_.d_bias.sizes[bias]);
      }
    }
    for (std::size_t e = 0; e < delta_to_q.size() && !keys.empty(); ++e) {
      Conditioning& c = truth_.d_q.sizes[truth_.d_q.index(at.b, at.h, at.i, 0) + e];
      c.variance += square(s.delta_rounding * delta_to_q[e]);
    }
    std::size_t bias = 0;
    if (delta_to_bias > 0.0 && bias_index(at, 0, &bias)) {
      Conditioning& c = truth_.d_bias.sizes[bias];
      c.variance += square(s.delta_rounding * delta_to_bias);
    }
    if (rules_.has_sink()) {
      const double p = static_cast<double>(row.sink_prob);
      const double before = s.delta_abs + s.d_lse, at_most = s.d_prob_max + s.d_lse;
      add({static_cast<double>(g.d_sink), p * before, at_most, s.delta_rounding * p}, s,
          &truth_.d_sinks.sizes[static_cast<std::size_t>(at.h)]);
    }
  }

  const AttentionGradRequest& request_;
  Rules rules_;
  GradTruth truth_;
};

Status check_gradient_shapes(const AttentionGradRequest& r) {
  if (Status status = check_shapes(r); !status.ok()) return status;
  const std::int64_t* q = r.q.shape;
  const TensorView& g = r.d_out;
  const bool fits = g.rank == 4 && is_known(g.dtype) && g.shape[0] == q[0] && g.shape[1] == q[1] &&
                    g.shape[2] == q[2] && g.shape[3] == r.v.shape[3];
  if (fits) return {};
  return Status(StatusCode::kInvalidArgument, "[oracle] shape of d_out (" + to_string(g) +
                                                  ") must be [B,Hq,Sq,Dv] of q " + to_string(r.q) +
                                                  " and v " + to_string(r.v));
}

}  // namespace

Expected<GradTruth> compute_gradients(const AttentionGradRequest& request, Fault fault) {
  if (Status status = check_gradient_shapes(request); !status.ok()) return status;
  Gradients gradients(request, fault);
  if (request.q.dtype == Dtype::kF64) return gradients.run<long double, double>();
  return gradients.run<double, float>();
}

}  // namespace regard::oracle

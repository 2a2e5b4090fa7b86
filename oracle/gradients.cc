#include "oracle/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "oracle/padded.h"
#include "oracle/row.h"
#include "oracle/row_gradient.h"
#include "oracle/row_sizes.h"
#include "oracle/rules.h"

namespace regard::oracle {
namespace {

class Gradients {
 public:
  Gradients(const AttentionGradRequest& request, Fault fault)
      : request_(request),
        rules_(request, fault),
        u_(unit_roundoff(request.q.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32)) {
    truth_.dtype = request.q.dtype;
    truth_.dtype_probs = ideal_dtype_probs(request);
    truth_.dtype_d_out = request.d_out.dtype;
    resize(&truth_.d_q, request.q);
    resize(&truth_.d_k, request.k);
    resize(&truth_.d_v, request.v);
    if (request.attn_bias.present()) resize(&truth_.d_bias, request.attn_bias);
    if (request.sinks.present()) resize(&truth_.d_sinks, {1, 1, 1, request.q.shape[1]});
    for (int slot = 0; slot < kCapturedCount; ++slot) {
      if (!rules_.functions().differentiates(slot)) continue;
      const TensorView& captured = request.*kCaptured[slot];
      std::vector<std::int64_t> shape(kMaxRank, 1);
      std::copy_n(captured.shape, captured.rank, shape.end() - captured.rank);
      resize(&truth_.d_captured[slot], shape);
    }
  }
  const Functions& functions() const { return rules_.functions(); }

  template <class Exact, class Ideal>
  GradTruth run() {
    if (request_.q.shape[2] == 0) return std::move(truth_);  // the other extents may be huge
    for (std::int64_t b = 0; b < request_.q.shape[0]; ++b) {
      for (std::int64_t h = 0; h < request_.q.shape[1]; ++h) {
        const Head<Exact> exact = load_head<Exact>(rules_, b, h, Dtype::kF64);
        const Head<Ideal> ideal = load_head<Ideal>(rules_, b, h, truth_.dtype_probs);
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
    const RowKeys seen = visible_keys(exact, rules_, at);
    const auto row = backward_row(exact, rules_, request_, at, seen, Dtype::kF64);
    add_terms(row, [](Gradient* to, std::size_t n, Exact term) { to->exact[n] += term; });
    const auto ideal_row = backward_row(ideal, rules_, request_, at, seen, delta_dtype(request_));
    add_terms(ideal_row, [](Gradient* to, std::size_t n, Ideal term) {
      to->ideal[n] = static_cast<Ideal>(to->ideal[n]) + term;
    });
    add_sizes(row);
    if (!seen.undecided.empty()) add_unknown(row);
  }

  bool skips_group_member(std::int64_t h) const {
    const std::int64_t group = request_.q.shape[1] / request_.k.shape[1];
    return rules_.fault() == Fault::kGroupNotSummed && h % group != 0;
  }

  /// Where the bias of a place lies; false without one, or where a planted fault leaves it out.
  bool bias_index(const Place& at, std::int64_t j, std::size_t* index) const {
    if (!request_.attn_bias.present()) return false;
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

  /// Where an element of a captured tensor has its gradient.
  template <class R>
  std::size_t captured_index(const ElementSlope<R>& element) const {
    const int rank = (request_.*kCaptured[element.slot]).rank;
    std::int64_t own[kMaxRank] = {};
    std::copy_n(element.index, rank, own + kMaxRank - rank);
    return truth_.d_captured[element.slot].index(own[0], own[1], own[2], own[3]);
  }

  /// The elements that key n's score was computed from; none where a planted fault leaves them out.
  template <class R>
  std::vector<ElementSlope<R>> elements_of(const BackwardRow<R>& row, std::size_t n) const {
    const bool left_out = rules_.fault() == Fault::kCapturedGradNotSummed && row.at.h != 0;
    if (row.result.functions.empty() || left_out) return {};
    return row.result.functions[n].elements;
  }

  /// Calls add_term(gradient, index, term) for every term of the row.
  template <class R, class F>
  void add_terms(const BackwardRow<R>& row, F&& add_term) {
    const auto& [head, at, seen, up, result, g] = row;
    const std::vector<VisibleKey>& keys = seen.keys;
    const std::int64_t kv = rules_.kv_head(at.h);
    const R scale = static_cast<R>(rules_.softmax_scale());
    const R scale_k = rules_.fault() == Fault::kKeyGradNotScaled ? R{1} : scale;
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const std::int64_t j = keys[n].j;
      for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
        add_term(&truth_.d_q, truth_.d_q.index(at.b, at.h, at.i, d),
                 scale * (g.d_scaled[n] * head.key(j)[d]));
        if (skips_group_member(at.h)) continue;
        add_term(&truth_.d_k, truth_.d_k.index(at.b, kv, j, d),
                 scale_k * (g.d_scaled[n] * head.query(at.i)[d]));
      }
      for (std::int64_t d = 0; d < head.head_dim_v && !skips_group_member(at.h); ++d) {
        add_term(&truth_.d_v, truth_.d_v.index(at.b, kv, j, d),
                 g.weights[n] * up.d_out[static_cast<std::size_t>(d)]);
      }
      std::size_t bias = 0;
      if (bias_index(at, j, &bias)) add_term(&truth_.d_bias, bias, g.d_edited[n]);
      for (const ElementSlope<R>& element : elements_of(row, n)) {
        add_term(&truth_.d_captured[element.slot], captured_index(element),
                 g.d_edited[n] * element.slope);
      }
    }
    if (rules_.has_sink()) add_term(&truth_.d_sinks, static_cast<std::size_t>(at.h), g.d_sink);
  }

  template <class R>
  void add_sizes(const BackwardRow<R>& row) {
    const RowSizes s = row_sizes(request_, rules_, row);
    for (std::size_t n = 0; n < row.seen.keys.size(); ++n) add_key_sizes(row, s, n);
    if (!row.seen.keys.empty()) add_delta_sizes(row, s);
    if (!rules_.has_sink()) return;
    const double p = static_cast<double>(row.result.sink_prob);
    const double value = static_cast<double>(row.gradient.d_sink);
    add({value, std::fabs(value) + p * s.d_scores_abs, p * (s.delta_abs + s.d_lse),
         s.d_prob_max + s.d_lse, s.delta_deviation * p, 1.0},
        s, &truth_.d_sinks.sizes[static_cast<std::size_t>(row.at.h)]);
  }

  template <class R>
  void add_key_sizes(const BackwardRow<R>& row, const RowSizes& s, std::size_t n) {
    const auto& [head, at, seen, up, result, g] = row;
    const std::vector<VisibleKey>& keys = seen.keys;
    const std::int64_t kv = rules_.kv_head(at.h), j = keys[n].j;
    const double scale = rules_.softmax_scale();
    const double p = static_cast<double>(result.probs[n]);
    // dS times `factor`; `slope` is softcap's and a function's, and `slope_size` what it is before
    // cancelling. Delta's rounding is added where its sum is known.
    const auto of_score = [&](double d_score, const Slope& slope, double factor) {
      const double size = std::fabs(factor);
      return Term{d_score * factor,
                  (std::fabs(d_score) + std::fabs(slope.value) * p * s.d_scores_abs) * size,
                  times(p * (s.d_prob[n] + s.delta_abs + s.d_lse), slope.size) * size,
                  times(s.d_prob[n] + s.d_prob_max + s.d_lse, slope.largest(u_)) * size,
                  0.0,
                  size};
    };
    const double d_scaled = static_cast<double>(g.d_scaled[n]);
    const Slope slope{static_cast<double>(g.slopes[n]), g.slope_sizes[n]};
    for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
      const double k = scale * static_cast<double>(head.key(j)[d]);
      const double q = scale * static_cast<double>(head.query(at.i)[d]);
      add(of_score(d_scaled, slope, k), s,
          &truth_.d_q.sizes[truth_.d_q.index(at.b, at.h, at.i, d)]);
      Term to_k = of_score(d_scaled, slope, q);
      to_k.delta_deviation = s.delta_deviation * p * slope.value * q;
      add(to_k, s, &truth_.d_k.sizes[truth_.d_k.index(at.b, kv, j, d)]);
    }
    const double weight = static_cast<double>(g.weights[n]);
    for (std::int64_t d = 0; d < head.head_dim_v; ++d) {
      const double d_out = std::fabs(static_cast<double>(up.d_out[static_cast<std::size_t>(d)]));
      add({weight * d_out, weight * d_out, 0.0, keys[n].dropout_factor * d_out, 0.0, 0.0}, s,
          &truth_.d_v.sizes[truth_.d_v.index(at.b, kv, j, d)]);
    }
    const double d_edited = static_cast<double>(g.d_edited[n]);
    for (const ElementSlope<R>& element : elements_of(row, n)) {
      const Slope of_element{static_cast<double>(element.slope), element.size};
      add(of_score(d_edited * of_element.value, of_element, 1.0), s,
          &truth_.d_captured[element.slot].sizes[captured_index(element)]);
    }
    std::size_t bias = 0;
    if (!bias_index(at, j, &bias)) return;
    Term to_bias = of_score(d_edited, Slope{1.0, 1.0}, 1.0);
    if (truth_.d_bias.shape[3] != 1) to_bias.delta_deviation = s.delta_deviation * p;
    add(to_bias, s, &truth_.d_bias.sizes[bias]);
  }

  /// What delta's rounding does where the row's keys add to one element: an error of delta is the
  /// same for all of them and adds up before it is squared.
  template <class R>
  void add_delta_sizes(const BackwardRow<R>& row, const RowSizes& s) {
    const auto& [head, at, seen, up, result, g] = row;
    const std::vector<VisibleKey>& keys = seen.keys;
    const double scale = rules_.softmax_scale();
    add_captured_delta_sizes(row, s);
    for (std::int64_t d = 0; d < head.head_dim_qk; ++d) {
      double sum = 0.0;
      for (std::size_t n = 0; n < keys.size(); ++n) {
        sum += static_cast<double>(result.probs[n] * g.slopes[n] * head.key(keys[n].j)[d]);
      }
      truth_.d_q.sizes[truth_.d_q.index(at.b, at.h, at.i, d)].delta_variance +=
          square(s.delta_deviation * scale * sum);
    }
    std::size_t bias = 0;
    if (truth_.d_bias.shape[3] != 1 || !bias_index(at, 0, &bias)) return;
    double sum = 0.0;
    for (const R p : result.probs) sum += static_cast<double>(p);
    truth_.d_bias.sizes[bias].delta_variance += square(s.delta_deviation * sum);
  }

  template <class R>
  void add_captured_delta_sizes(const BackwardRow<R>& row, const RowSizes& s) {
    std::map<std::pair<int, std::size_t>, double> sums;
    for (std::size_t n = 0; n < row.seen.keys.size(); ++n) {
      for (const ElementSlope<R>& element : elements_of(row, n)) {
        sums[{element.slot, captured_index(element)}] +=
            static_cast<double>(row.result.probs[n] * element.slope);
      }
    }
    for (const auto& [at, sum] : sums) {
      truth_.d_captured[at.first].sizes[at.second].delta_variance +=
          square(s.delta_deviation * sum);
    }
  }

  /// A row of which a kernel's roundings decide what it sees: whatever it reaches may be anything.
  template <class R>
  void add_unknown(const BackwardRow<R>& row) {
    const Place& at = row.at;
    const std::int64_t kv = rules_.kv_head(at.h);
    const auto unknown = [](Gradient* g, std::size_t n) {
      g->sizes[n].terms += 1;
      g->sizes[n].huge = std::numeric_limits<double>::infinity();
    };
    const auto unknown_rows = [&](Gradient* g, std::int64_t h, std::int64_t i) {
      for (std::int64_t d = 0; d < g->shape[3]; ++d) unknown(g, g->index(at.b, h, i, d));
    };
    unknown_rows(&truth_.d_q, at.h, at.i);
    std::vector<std::int64_t> keys = row.seen.undecided;
    for (const VisibleKey& key : row.seen.keys) keys.push_back(key.j);
    for (const std::int64_t j : keys) {
      unknown_rows(&truth_.d_k, kv, j);
      unknown_rows(&truth_.d_v, kv, j);
      std::size_t bias = 0;
      if (bias_index(at, j, &bias)) unknown(&truth_.d_bias, bias);
    }
    if (rules_.has_sink()) unknown(&truth_.d_sinks, static_cast<std::size_t>(at.h));
    for (Gradient& g : truth_.d_captured) {
      for (std::size_t n = 0; n < g.exact.size(); ++n) unknown(&g, n);
    }
  }

  const AttentionGradRequest& request_;
  Rules rules_;
  double u_;  // unit roundoff of the kernels' arithmetic
  GradTruth truth_;
};

Status check_gradient_shapes(const AttentionGradRequest& r) {
  if (Status status = check_shapes(r); !status.ok()) return status;
  const std::int64_t* q = r.q.shape;
  const TensorView& g = r.d_out;
  const bool fits = g.rank == 4 && is_known(g.dtype) && g.shape[0] == q[0] && g.shape[1] == q[1] &&
                    g.shape[2] == q[2] && g.shape[3] == r.v.shape[3];
  if (!fits) {
    return Status(StatusCode::kInvalidArgument, "[oracle] shape of d_out (" + to_string(g) +
                                                    ") must be [B,Hq,Sq,Dv] of q " +
                                                    to_string(r.q) + " and v " + to_string(r.v));
  }
  const TensorView& l = r.d_lse;
  const bool lse_fits = !l.present() || (l.rank == 3 && is_known(l.dtype) && l.shape[0] == q[0] &&
                                         l.shape[1] == q[1] && l.shape[2] == q[2]);
  if (lse_fits) return {};
  return Status(StatusCode::kInvalidArgument, "[oracle] shape of d_lse (" + to_string(l) +
                                                  ") must be [B,Hq,Sq] of q " + to_string(r.q));
}

}  // namespace

Expected<GradTruth> compute_gradients(const AttentionGradRequest& given, Fault fault) {
  const Expected<Padded> padded = Padded::make(given);
  if (!padded) return padded.status();
  const AttentionGradRequest& request = padded->request();
  if (Status status = check_gradient_shapes(request); !status.ok()) return status;
  Gradients gradients(request, fault);
  if (Status status = gradients.functions().status(); !status.ok()) return status;
  GradTruth truth = request.q.dtype == Dtype::kF64 ? gradients.run<long double, double>()
                                                   : gradients.run<double, float>();
  if (Status status = gradients.functions().status(); !status.ok()) return status;
  return padded->pack(std::move(truth));
}

}  // namespace regard::oracle

#include "tests/support/grad_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "conformance/problem.h"
#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::test {
namespace {

constexpr std::int64_t kTileKv = 16;
constexpr int kLanes = 8;

template <class R>
R dot(const R* a, const R* b, std::size_t n) {
  R lanes[kLanes] = {};
  for (std::size_t d = 0; d < n; ++d) lanes[d % kLanes] = std::fma(a[d], b[d], lanes[d % kLanes]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <class R>
class GradModel {
 public:
  GradModel(const AttentionGradRequest& request, const GradModelOptions& options)
      : r_(request), options_(options), rules_(request, oracle::Fault::kNone) {
    batch_ = r_.q.shape[0];
    heads_ = r_.q.shape[1];
    heads_kv_ = r_.k.shape[1];
    rows_ = r_.q.shape[2];
    keys_ = r_.k.shape[2];
    dim_qk_ = static_cast<std::size_t>(r_.q.shape[3]);
    dim_v_ = static_cast<std::size_t>(r_.v.shape[3]);
    scale_ = static_cast<R>(rules_.softmax_scale());
    from_lse_ = options.from_lse || r_.saved.kind == SavedContext::Kind::kLse;
    if (r_.attn_bias.present()) {
      const std::int64_t* s = r_.attn_bias.shape;
      d_bias_.resize(static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]));
    }
    d_sinks_.resize(static_cast<std::size_t>(heads_));
    for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
      const TensorView& view = r_.*oracle::kCaptured[slot];
      if (view.present()) d_captured_[slot].resize(static_cast<std::size_t>(view.num_elements()));
    }
  }

  void run() {
    for (b_ = 0; b_ < batch_; ++b_) {
      for (std::int64_t kv = 0; kv < heads_kv_; ++kv) run_group(kv);
    }
    write_all(r_.d_bias, d_bias_);
    write_all(r_.d_sinks, d_sinks_);
    const TensorView* const captured[] = {&r_.d_captured0, &r_.d_captured1, &r_.d_captured2,
                                          &r_.d_captured3, &r_.d_captured4, &r_.d_captured5,
                                          &r_.d_captured6, &r_.d_captured7};
    for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
      write_all(*captured[slot], d_captured_[slot]);
    }
  }

 private:
  struct Row {
    R max = -std::numeric_limits<R>::infinity(), sum = 0, lse = 0, delta = 0, d_lse = 0;
    bool live = false;
  };

  bool broken(GradBreak b) const { return options_.broken == b; }

  std::vector<R> load(const TensorView& view, std::int64_t h, std::int64_t s) const {
    std::vector<R> row;
    for (std::int64_t d = 0; d < view.shape[3]; ++d) {
      row.push_back(static_cast<R>(oracle::element(view, b_, h, s, d)));
    }
    return row;
  }

  void store(const TensorView& view, std::int64_t h, std::int64_t s, const std::vector<R>& row) {
    if (!view.present()) return;
    for (std::size_t d = 0; d < row.size(); ++d) {
      store_at(view, {b_, h, s, static_cast<std::int64_t>(d)}, row[d]);
    }
  }

  static void store_at(const TensorView& view, const std::vector<std::int64_t>& at, R value) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < view.rank; ++dim) {
      offset += at[static_cast<std::size_t>(dim)] * view.strides[dim];
    }
    oracle::encode(static_cast<double>(value),
                   static_cast<char*>(view.data) + offset * size_of(view.dtype), view.dtype);
  }

  static void write_all(const TensorView& view, const std::vector<R>& numbers) {
    if (!view.present()) return;
    std::size_t n = 0;
    conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
      oracle::encode(static_cast<double>(numbers[n++]), element, view.dtype);
    });
  }

  R rounded(R value) const {
    if (!options_.rounds_probs) return value;
    return static_cast<R>(oracle::round_to(static_cast<double>(value), r_.q.dtype));
  }

  /// The edited score; *slope is softcap's and the functions'.
  R score(const oracle::Place& at, const R* q, const R* k, R* slope) {
    R s = scale_ * dot(q, k, dim_qk_);
    *slope = 1;
    const R cap = static_cast<R>(r_.options.softcap);
    if (cap > 0) {
      const R t = std::tanh(s / cap);
      s = cap * t;
      if (!broken(GradBreak::kSoftcapSlopeMissing)) *slope = 1 - t * t;
    }
    if (rules_.edits_scores()) s = edit(at, s, slope);
    return s + static_cast<R>(rules_.bias(at)) + static_cast<R>(rules_.alibi(at));
  }

  R edit(const oracle::Place& at, R s, R* slope) {
    const oracle::FunctionPlace place = rules_.function_place(at);
    const auto apply = [&](R given) {
      return rules_.functions().edit(place, given, nullptr, /*differentiates=*/true);
    };
    const oracle::FunctionResult<R> result = apply(s);
    elements_ = result.elements;
    if (broken(GradBreak::kFunctionSlopeAtEdited)) {
      *slope *= apply(result.value).slope;
    } else if (!broken(GradBreak::kFunctionSlopeMissing)) {
      *slope *= result.slope;
    }
    return result.value;
  }

  /// What the score of `at` was computed from.
  void add_captured(R d_edited) {
    for (const oracle::ElementSlope<R>& element : elements_) {
      const TensorView& view = r_.*oracle::kCaptured[element.slot];
      std::int64_t index = 0;
      for (int dim = 0; dim < view.rank; ++dim) {
        index = index * view.shape[dim] + element.index[dim];
      }
      R& sum = d_captured_[element.slot][static_cast<std::size_t>(index)];
      const R term = d_edited * element.slope;
      sum = broken(GradBreak::kCapturedNotSummed) ? term : sum + term;
    }
  }

  void run_group(std::int64_t kv) {
    k_.clear(), v_.clear();
    for (std::int64_t j = 0; j < keys_; ++j) {
      k_.push_back(load(r_.k, kv, j));
      v_.push_back(load(r_.v, kv, j));
    }
    d_k_.assign(k_.size(), std::vector<R>(dim_qk_));
    d_v_.assign(v_.size(), std::vector<R>(dim_v_));
    const std::int64_t group = heads_ / heads_kv_;
    for (h_ = kv * group; h_ < (kv + 1) * group; ++h_) {
      if (broken(GradBreak::kGroupNotSummed)) {
        d_k_.assign(k_.size(), std::vector<R>(dim_qk_));
        d_v_.assign(v_.size(), std::vector<R>(dim_v_));
      }
      run_head();
    }
    const R scale_k = broken(GradBreak::kKeyGradNotScaled) ? R{1} : scale_;
    for (std::int64_t j = 0; j < keys_; ++j) {
      const auto n = static_cast<std::size_t>(j);
      for (R& x : d_k_[n]) x *= scale_k;
      store(r_.d_k, kv, j, d_k_[n]);
      store(r_.d_v, kv, j, d_v_[n]);
    }
  }

  void run_head() {
    std::vector<std::vector<R>> d_q(static_cast<std::size_t>(rows_), std::vector<R>(dim_qk_));
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < rows_; ++i) {
      rows.push_back(i < rules_.len_q(b_) ? forward_row(i) : padding_row(i));
    }
    for (std::int64_t j0 = 0; j0 < keys_; j0 += kTileKv) {
      for (std::int64_t i = 0; i < rows_; ++i) {
        const Row& row = rows[static_cast<std::size_t>(i)];
        if (row.live) backward_tile(row, i, j0, &d_q[static_cast<std::size_t>(i)]);
      }
    }
    for (std::int64_t i = 0; i < rows_; ++i) {
      std::vector<R>& row = d_q[static_cast<std::size_t>(i)];
      for (R& x : row) x *= scale_;
      store(r_.d_q, h_, i, row);
    }
  }

  Row padding_row(std::int64_t i) {
    write_forward(i, std::vector<R>(dim_v_), Row{});
    return {};
  }

  void write_forward(std::int64_t i, const std::vector<R>& out, const Row& row) {
    store(r_.out, h_, i, out);
    if (r_.lse.present()) {
      const R lse = row.sum > 0 || std::isnan(row.sum) ? row.max + std::log(row.sum) : row.max;
      store_at(r_.lse, {b_, h_, i}, lse);
    }
    if (!r_.saved_stats.present()) return;
    store_at(r_.saved_stats, {b_, h_, i, 0}, row.max);
    store_at(r_.saved_stats, {b_, h_, i, 1}, row.sum);
  }

  Row forward_row(std::int64_t i) {
    const std::vector<R> q = load(r_.q, h_, i);
    Row row;
    if (rules_.has_sink()) row.max = static_cast<R>(rules_.sink(h_));
    row.sum = std::isinf(row.max) ? R{0} : R{1};
    std::vector<R> out(dim_v_);
    for (std::int64_t j0 = 0; j0 < keys_; j0 += kTileKv) forward_tile(q, i, j0, &row, &out);
    for (R& o : out) o = row.live ? o / row.sum : R{0};
    write_forward(i, out, row);
    row.lse = row.max + std::log(row.sum);
    if (!row.live && row.sum == 0) return row;  // no weight at all
    const std::vector<R> d_out = load(r_.d_out, h_, i);
    const std::vector<R> stored = load(r_.out, h_, i);
    row.delta = row.live ? dot(d_out.data(), stored.data(), dim_v_) : R{0};
    if (broken(GradBreak::kDeltaDropped)) row.delta = 0;
    if (r_.d_lse.present() && !broken(GradBreak::kLseGradIgnored)) {
      row.d_lse = static_cast<R>(oracle::element(r_.d_lse, b_, h_, i));
    }
    if (rules_.has_sink()) {
      const R p = prob(row, static_cast<R>(rules_.sink(h_)));
      d_sinks_[static_cast<std::size_t>(h_)] += p * (row.d_lse - row.delta);
    }
    return row;
  }

  R prob(const Row& row, R s) const {
    return from_lse_ ? std::exp(s - row.lse) : std::exp(s - row.max) / row.sum;
  }

  void forward_tile(const std::vector<R>& q, std::int64_t i, std::int64_t j0, Row* row,
                    std::vector<R>* out) {
    std::vector<R> scores(kTileKv, -std::numeric_limits<R>::infinity());
    std::vector<bool> seen(kTileKv);
    R max = row->max, slope;
    for (std::int64_t n = 0; n < kTileKv && j0 + n < keys_; ++n) {
      const oracle::Place at{b_, h_, i, j0 + n};
      const auto t = static_cast<std::size_t>(n);
      seen[t] = rules_.visible(at);
      if (!seen[t]) continue;
      scores[t] = score(at, q.data(), k_[static_cast<std::size_t>(at.j)].data(), &slope);
      seen[t] = !hidden(scores[t]);
      if (!seen[t]) continue;
      row->live = true;
      max = std::max(max, scores[t]);
    }
    const R factor = row->sum == 0 ? R{0} : std::exp(row->max - max);
    row->max = max;
    row->sum *= factor;
    for (R& o : *out) o *= factor;
    for (std::size_t n = 0; n < seen.size(); ++n) {
      if (!seen[n]) continue;
      const std::int64_t j = j0 + static_cast<std::int64_t>(n);
      const R p = std::exp(scores[n] - max);
      row->sum += p;
      const R weight = rounded(p) * static_cast<R>(rules_.dropout_factor({b_, h_, i, j}));
      for (std::size_t d = 0; d < dim_v_; ++d) {
        (*out)[d] = std::fma(weight, v_[static_cast<std::size_t>(j)][d], (*out)[d]);
      }
    }
  }

  void backward_tile(const Row& row, std::int64_t i, std::int64_t j0, std::vector<R>* d_q) {
    const std::vector<R> q = load(r_.q, h_, i), d_out = load(r_.d_out, h_, i);
    std::vector<R> tile(dim_qk_);
    for (std::int64_t j = j0; j < std::min(j0 + kTileKv, keys_); ++j) {
      const oracle::Place at{b_, h_, i, j};
      const auto n = static_cast<std::size_t>(j);
      const bool visible = rules_.visible(at);
      if (!visible && !broken(GradBreak::kMaskMultiplied)) continue;
      R slope = 1;
      const R s = score(at, q.data(), k_[n].data(), &slope);
      if (visible && hidden(s)) continue;
      const R p = visible ? prob(row, s) : R{0};
      R factor = static_cast<R>(rules_.dropout_factor(at));
      const R d_weight = dot(d_out.data(), v_[n].data(), dim_v_);
      if (broken(GradBreak::kDropoutNotScaled)) factor = std::min(factor, R{1});
      const R d_prob = factor == 0 ? R{0} : factor * d_weight;
      const R d_edited = p * (d_prob - (row.delta - row.d_lse));
      const R d_scaled = rounded(d_edited * slope), weight = rounded(p) * factor;
      for (std::size_t d = 0; d < dim_qk_; ++d) {
        tile[d] = std::fma(d_scaled, k_[n][d], tile[d]);
        d_k_[n][d] = std::fma(d_scaled, q[d], d_k_[n][d]);
      }
      for (std::size_t d = 0; d < dim_v_; ++d) {
        d_v_[n][d] = std::fma(weight, d_out[d], d_v_[n][d]);
      }
      if (r_.attn_bias.present() && visible) add_bias(at, d_edited);
      if (visible) add_captured(d_edited);
    }
    if (broken(GradBreak::kLastTileSkipped) && j0 + kTileKv >= keys_ && j0 > 0) return;
    for (std::size_t d = 0; d < dim_qk_; ++d) (*d_q)[d] += tile[d];
  }

  /// A function's -inf.
  bool hidden(R s) const {
    return rules_.edits_scores() && s == -std::numeric_limits<R>::infinity();
  }

  void add_bias(const oracle::Place& at, R d_edited) {
    const std::int64_t* shape = r_.attn_bias.shape;
    const std::int64_t full[] = {at.b, at.h, at.i, at.j};
    std::int64_t index = 0;
    for (int dim = 0; dim < 4; ++dim) {
      index = index * shape[dim] + (shape[dim] == 1 ? 0 : full[dim]);
    }
    R& sum = d_bias_[static_cast<std::size_t>(index)];
    sum = broken(GradBreak::kBiasGradNotReduced) ? d_edited : sum + d_edited;
  }

  const AttentionGradRequest& r_;
  GradModelOptions options_;
  oracle::Rules rules_;
  std::int64_t batch_, heads_, heads_kv_, rows_, keys_, b_ = 0, h_ = 0;
  std::size_t dim_qk_, dim_v_;
  R scale_;
  bool from_lse_;
  std::vector<std::vector<R>> k_, v_, d_k_, d_v_;
  std::vector<R> d_bias_, d_sinks_;
  std::vector<R> d_captured_[oracle::kCapturedCount];
  std::vector<oracle::ElementSlope<R>> elements_;  // of the last score
};

}  // namespace

void run_grad_model(const AttentionGradRequest& request, const GradModelOptions& options) {
  if (request.q.dtype == Dtype::kF64) {
    GradModel<double>(request, options).run();
  } else {
    GradModel<float>(request, options).run();
  }
}

}  // namespace regard::test

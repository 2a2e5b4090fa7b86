#include "oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "oracle/padded.h"
#include "oracle/row.h"
#include "oracle/rules.h"

namespace regard::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Everything about one problem that does not depend on the arithmetic.
class Computation {
 public:
  Computation(const AttentionRequest& request, Fault fault) : rules_(request, fault) {
    truth_.batch = request.q.shape[0];
    truth_.num_heads = request.q.shape[1];
    truth_.seqlen_q = request.q.shape[2];
    truth_.seqlen_kv = request.k.shape[2];
    truth_.head_dim_v = request.v.shape[3];
    truth_.dtype_probs = ideal_dtype_probs(request);
    truth_.scores_kind = request.options.scores_kind;
  }

  /// Exact is the arithmetic of the truth, Ideal that of the ideal pipeline.
  template <class Exact, class Ideal>
  Truth run() {
    if (truth_.seqlen_q == 0) return std::move(truth_);  // the other extents may be huge
    for (std::int64_t b = 0; b < truth_.batch; ++b) {
      for (std::int64_t h = 0; h < truth_.num_heads; ++h) {
        const Head<Exact> exact = load_head<Exact>(rules_, b, h, Dtype::kF64);
        const Head<Ideal> ideal = load_head<Ideal>(rules_, b, h, truth_.dtype_probs);
        for (std::int64_t i = 0; i < truth_.seqlen_q; ++i) add_row(exact, ideal, b, h, i);
      }
    }
    return std::move(truth_);
  }
  const Functions& functions() const { return rules_.functions(); }

 private:
  template <class Exact, class Ideal>
  void add_row(const Head<Exact>& exact, const Head<Ideal>& ideal, std::int64_t b, std::int64_t h,
               std::int64_t i) {
    const RowKeys seen = visible_keys(exact, rules_, {b, h, i, 0});
    const std::vector<VisibleKey>& keys = seen.keys;
    const bool padding = i >= rules_.len_q(b);
    RowResult<Exact> row;
    RowResult<Ideal> row_ideal;
    if (padding) {
      row.out.assign(static_cast<std::size_t>(truth_.head_dim_v), Exact{0});
      row_ideal.out.assign(static_cast<std::size_t>(truth_.head_dim_v), Ideal{0});
      row.lse = static_cast<Exact>(-kInfinity);
      row_ideal.lse = static_cast<Ideal>(-kInfinity);
    } else {
      row = attend(exact, rules_, {b, h, i, 0}, keys);
      row_ideal = attend(ideal, rules_, {b, h, i, 0}, keys);
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
    truth_.rows.push_back(row_facts(exact, rules_, row, seen, h, i));
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
    if (rules_.edits_scores()) truth_.score_sizes.resize(end, 0.0);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const std::size_t at = start + static_cast<std::size_t>(keys[n].j);
      truth_.visible[at] = 1;
      if (rules_.edits_scores()) {
        truth_.score_sizes[at] = score_magnitude(exact, rules_, row, keys, n, i);
      }
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

  Rules rules_;
  Truth truth_;
};

/// describe() does not read lengths; rows past the tensors would be read.
Status check_lengths(const TensorView& lengths, std::int64_t batch, std::int64_t extent,
                     const char* name) {
  if (!lengths.present()) return {};
  if (lengths.rank != 1 || lengths.dtype != Dtype::kI32 || lengths.shape[0] != batch) {
    return Status(StatusCode::kInvalidArgument, std::string("[oracle] ") + name + " (" +
                                                    to_string(lengths) + ") must be i32 [" +
                                                    std::to_string(batch) + "]");
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto length = static_cast<std::int64_t>(element(lengths, b));
    if (length >= 0 && length <= extent) continue;
    return Status(StatusCode::kInvalidArgument,
                  std::string("[oracle] ") + name + "[" + std::to_string(b) + "] (" +
                      std::to_string(length) + "), expected 0 to " + std::to_string(extent));
  }
  return {};
}

}  // namespace

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
  if (Status status = check_lengths(request.seqlens_q, q[0], q[2], "seqlens_q"); !status.ok()) {
    return status;
  }
  return check_lengths(request.seqlens_kv, q[0], k[2], "seqlens_kv");
}

namespace {

/// Of numbers that are not rounded.
long double largest_magnitude(const std::vector<long double>& numbers, Fault fault) {
  long double largest = 0;
  for (const long double x : numbers) {
    if (std::isnan(x)) return x;
    largest = std::max(largest, fault == Fault::kAmaxSigned ? x : std::fabs(x));
  }
  return largest;
}

}  // namespace

Expected<Truth> compute(const AttentionRequest& given, Fault fault) {
  AttentionGradRequest request;
  static_cast<AttentionRequest&>(request) = given;
  const Expected<Padded> padded = Padded::make(request);
  if (!padded) return padded.status();
  if (Status status = check_shapes(padded->request()); !status.ok()) return status;
  Computation computation(padded->request(), fault);
  if (Status status = computation.functions().status(); !status.ok()) return status;
  const bool f64 = given.q.dtype == Dtype::kF64;
  Truth truth = f64 ? computation.run<long double, double>() : computation.run<double, float>();
  if (Status status = computation.functions().status(); !status.ok()) return status;
  truth.out_amax = largest_magnitude(truth.out, fault);
  return padded->pack(std::move(truth));
}

}  // namespace regard::oracle

#include "conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "conformance/problem.h"
#include "conformance/tolerance.h"
#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::conformance {
namespace {

using oracle::RowFacts;
using oracle::Truth;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kStructuralFrom = 0.1;
// Products below 2^-126 may flush: what a row of many keys can lose to that.
constexpr double kFlushed = 0x1p-126;
// Of rounding probabilities to 8 bits, whose error no ideal holds: the most among a head's outputs.
constexpr double kNarrowDeviations = 4.0;
// Of a sum of products of 8 bits in the units that have them: some 14 bits are kept.
constexpr double kNarrowSums = 0x1p-13;

/// What probabilities are rounded to: the ideal's type, of f64 or of the 8 bits that a call states,
/// else the kernel's.
Dtype rounded_to(Dtype ideal, Dtype kernel) {
  return ideal == Dtype::kF64 || is_f8(ideal) ? ideal : kernel;
}

class Comparer {
 public:
  Comparer(const Buffers& buffers, const Truth& truth, Dtype probs)
      : buffers_(buffers),
        truth_(truth),
        out_mean_(buffers.out.dtype, 0),
        rounded_probs_((is_f8(probs) ? kNarrowDeviations : 1.0) *
                       oracle::unit_roundoff(rounded_to(truth.dtype_probs, probs))),
        u_(is_f8(probs) ? kNarrowSums
                        : oracle::unit_roundoff(truth.dtype_probs == Dtype::kF64 ? Dtype::kF64
                                                                                 : Dtype::kF32)) {}

  Comparison run() {
    if (truth_.rows.empty()) return result_;  // the other extents may be huge
    for (std::int64_t b = 0; b < truth_.batch && result_.ok; ++b) {
      for (std::int64_t h = 0; h < truth_.num_heads && result_.ok; ++h) {
        b_ = b;
        h_ = h;
        count_rows();
        compare_out();
        if (result_.ok && buffers_.lse.present()) compare_lse();
        if (result_.ok && buffers_.saved_stats.present()) compare_stats();
        if (result_.ok && buffers_.scores_out.present()) compare_scores();
      }
    }
    if (result_.ok && buffers_.out_amax.present()) compare_amax();
    if (max_expected_ > 0.0) result_.out_error = max_error_ / max_expected_;
    if (const std::string wrong = out_mean_.check(); result_.ok && !wrong.empty()) {
      result_.ok = false;
      result_.text = "out: " + wrong;
    }
    return result_;
  }

 private:
  std::size_t row_index(std::int64_t i) const {
    return static_cast<std::size_t>((b_ * truth_.num_heads + h_) * truth_.seqlen_q + i);
  }
  const RowFacts& facts(std::int64_t i) const { return truth_.rows[row_index(i)]; }
  bool structural(const RowFacts& f) const { return 4.0 * u_ * f.smax > kStructuralFrom; }
  /// Of the score `at`: with functions those of a row differ in how exact they are.
  double score_floor(const RowFacts& f, std::size_t at) const {
    if (truth_.scores_kind == ScoresKind::kScaled) return 4.0 * u_ * f.scaled_smax;
    const bool of_key = truth_.scores_kind == ScoresKind::kEdited && !truth_.score_sizes.empty();
    return 4.0 * u_ * (of_key ? std::max(f.smax, truth_.score_sizes[at]) : f.smax);
  }
  /// Of a probability besides its score's: rounded to 8 bits it is a number of theirs over a sum of
  /// such.
  double prob_floor(long double expected) const {
    const double u = has_narrow_probs() ? oracle::unit_roundoff(truth_.dtype_probs) : 0.0;
    return 2.0 * u_ + 2.0 * u * static_cast<double>(expected);
  }
  /// Whether a probability, which a NaN among the row's sum makes NaN, may have underflowed before.
  bool may_be_zero(const RowFacts& f, double actual) const {
    return truth_.scores_kind == ScoresKind::kProbs && !f.finite && actual == 0.0;
  }

  void count_rows() {
    for (std::int64_t i = 0; i < truth_.seqlen_q; ++i) {
      const RowFacts& f = facts(i);
      ++result_.rows;
      if (f.padding) ++result_.padding_rows;
      if (!f.padding && f.visible_keys == 0) ++result_.dead_rows;
      if (structural(f)) ++result_.structural_rows;
    }
  }

  void fail(const std::string& tensor, const std::string& text) {
    result_.ok = false;
    result_.text = tensor + " b " + std::to_string(b_) + " h " + std::to_string(h_) + " " + text;
  }

  void fail_element(const std::string& tensor, std::int64_t row, std::int64_t column,
                    long double expected, double actual, const std::string& why) {
    fail(tensor, "row " + std::to_string(row) + " column " + std::to_string(column) +
                     ": expected " + number_text(expected) + ", actual " + number_text(actual) +
                     " (" + why + ")");
  }

  /// Whether the call's probabilities have 8 bits, which the ideal rounds them to.
  bool has_narrow_probs() const { return is_f8(truth_.dtype_probs); }

  /// As an output holds it: what lies beyond the largest finite number of 8 bits becomes that.
  long double held(long double value) const {
    if (!is_f8(buffers_.out.dtype) || std::isnan(value)) return value;
    const long double max = -oracle::lowest(buffers_.out.dtype);
    return std::clamp(value, -max, max);
  }

  void compare_out() {
    std::vector<Sample> samples;
    double max_expected = 0.0;
    for (std::int64_t i = 0; i < truth_.seqlen_q && result_.ok; ++i) {
      const RowFacts& f = facts(i);
      const bool by_structure = structural(f);
      for (std::int64_t d = 0; d < truth_.head_dim_v && result_.ok; ++d) {
        const std::size_t at = row_index(i) * static_cast<std::size_t>(truth_.head_dim_v) +
                               static_cast<std::size_t>(d);
        const double actual = oracle::element(buffers_.out, b_, h_, i, d);
        const long double expected = held(truth_.out[at]);
        if (f.undecided) {
          continue;
        } else if (f.visible_keys == 0) {
          // The truth is 0; the oracle states it, so that a wrong oracle is noticed.
          if (actual != expected) fail_element("out", i, d, expected, actual, "sees no key");
        } else if (by_structure) {
          judge_structure(f, i, d, expected, actual);
        } else {
          if (std::isfinite(expected)) {
            max_expected = std::max(max_expected, std::fabs(static_cast<double>(expected)));
          }
          samples.push_back({i, d, expected, static_cast<double>(held(truth_.out_ideal[at])),
                             actual, out_floor(f)});
        }
      }
    }
    if (!result_.ok) return;
    const Dtype dtype = buffers_.out.dtype;
    const double floor =
        2.0 * oracle::unit_roundoff(dtype) * max_expected + oracle::half_of_smallest(dtype);
    const Judgement judgement = judge(samples, floor, dtype);
    out_mean_.add(samples);
    if (!judgement.ok) fail("out", judgement.text);
    max_error_ = std::max(max_error_, judgement.max_error);
    max_expected_ = std::max(max_expected_, max_expected);
    result_.out_margin = std::max(result_.out_margin, judgement.margin);
  }

  /// Besides the scores' rounding: one standard deviation or so of rounding each probability and of
  /// summing in another order than the ideal's, whose error is one draw
  /// (docs/dev/decisions/numerics.md).
  double out_floor(const RowFacts& f) const {
    const auto keys = static_cast<double>(f.visible_keys);
    const bool wide = truth_.dtype_probs == Dtype::kF64;
    const double flushed = wide ? 0.0 : kFlushed * keys;
    const double rounded_p = rounded_probs_ * f.prob_spread * f.weight_sum_max;
    // Of each key its sum is rounded, and below the normal range its product, too.
    const double denormal = oracle::half_of_smallest(wide ? Dtype::kF64 : Dtype::kF32);
    const double order = std::sqrt(keys) * (u_ * f.max_abs_v + denormal);
    return (4.0 * u_ * std::max(1.0, f.smax) + rounded_p + flushed) * f.max_abs_v + order;
  }

  /// What rounding may do to a row of n keys that is judged by its structure, for any order of its
  /// sums. The factor of dropout, the product with 1 / n, 1 / n itself and storing round once each:
  /// 4 u max|V|. An addition that makes a sum of k terms rounds at most u k max|V|. In a chain, the
  /// order whose sums are the longest, that is u (2 + ... + n) max|V|, divided by n less than
  /// u (n + 1) / 2 max|V|. The sum of n equal probabilities is exact. Other probabilities add up to
  /// sums of up to all of them, in the numerator and in the denominator: 2 u n max|V|.
  /// Rows of V that are alike are all rounded in one direction and come near: a chain of 122 in f64
  /// is off by 23 u max|V|, where random rows lose less than 1.
  double structural_slack(const RowFacts& f) const {
    const double u = std::max(oracle::unit_roundoff(truth_.dtype_probs),
                              oracle::unit_roundoff(buffers_.out.dtype));
    const auto keys = static_cast<double>(f.visible_keys);
    const double additions = f.equal_scores ? (keys + 1.0) / 2.0 : 2.0 * keys;
    return (4.0 * u + additions * u_) * f.max_abs_v * f.weight_sum_max;
  }

  /// Finite, within [min V, max V]; equal scores give the mean of V.
  void judge_structure(const RowFacts& f, std::int64_t i, std::int64_t d, long double expected,
                       double actual) {
    if (!f.finite) {  // what is not finite in the inputs may show
      if (std::isnan(expected) && !std::isnan(actual)) {
        fail_element("out", i, d, expected, actual, "a visible NaN must show");
      }
      return;
    }
    const double slack = structural_slack(f);
    if (!(actual >= held(f.min_v) - slack && actual <= held(f.max_v) + slack)) {
      fail_element(
          "out", i, d, expected, actual,
          "within [min V, max V] = [" + number_text(f.min_v) + ", " + number_text(f.max_v) + "]");
    } else if (f.equal_scores && !(std::fabs(actual - static_cast<double>(expected)) <= slack)) {
      fail_element("out", i, d, expected, actual, "equal scores give the mean of V");
    }
  }

  void fail_amax(long double expected, double actual, const std::string& why) {
    result_.ok = false;
    result_.text = "out_amax: expected " + number_text(expected) + ", actual " +
                   number_text(actual) + " (" + why + ")";
  }

  /// Rounding is monotone: rounded as `out` is, the largest magnitude is out's own largest, to the
  /// bit. It is near the truth's, too, for `out` may be coarse.
  void compare_amax() {
    const double actual = oracle::element(buffers_.out_amax, 0);
    const Dtype dtype = buffers_.out.dtype;
    double stored = 0.0, tolerance = 0.0;
    bool judged = true;
    for_each_element(buffers_.out, [&](const auto&, const unsigned char* element) {
      const double x = std::fabs(oracle::decode(element, dtype));
      if (std::isnan(x) || x > stored) stored = x;
    });
    // An amax is f32, and so it rounds where out is f64.
    const bool wide = dtype == Dtype::kF64;
    const double rounded = oracle::round_to(static_cast<double>(held(actual)), dtype);
    if (wide) stored = oracle::round_to(stored, Dtype::kF32);
    if (rounded != stored && !(std::isnan(rounded) && std::isnan(stored))) {
      return fail_amax(stored, actual, "the largest magnitude of out as it is stored");
    }
    for (std::size_t row = 0; row < truth_.rows.size(); ++row) {
      const RowFacts& f = truth_.rows[row];
      judged = judged && !f.undecided && !structural(f);
      tolerance = std::max(tolerance, out_floor(f));
    }
    for (std::size_t n = 0; n < truth_.out.size(); ++n) {
      const auto error = static_cast<double>(std::fabs(truth_.out_ideal[n] - truth_.out[n]));
      if (std::isfinite(error)) tolerance = std::max(tolerance, 1.5 * error);
    }
    const auto expected = static_cast<double>(truth_.out_amax);
    if (!judged || (std::isnan(expected) && std::isnan(actual))) return;
    tolerance +=
        4.0 * oracle::unit_roundoff(Dtype::kF32) * expected + oracle::half_of_smallest(Dtype::kF32);
    const double largest = static_cast<double>(std::numeric_limits<float>::max());
    const bool beyond = std::isinf(actual) && expected + tolerance > largest;
    if (beyond || actual == expected || std::fabs(actual - expected) <= tolerance) return;
    fail_amax(truth_.out_amax, actual, "tolerance " + number_text(tolerance));
  }

  // smax as for out: where scores cancel, one (b, h) of a single row holds the ideal's luck against
  // every other order of the same sum (docs/dev/decisions/numerics.md has the figures).
  double lse_floor(std::int64_t i) const {
    const double lse = static_cast<double>(truth_.lse[row_index(i)]);
    const double magnitude = std::isfinite(lse) ? std::fabs(lse) : 0.0;
    const RowFacts& f = facts(i);
    const double rounded_sum = has_narrow_probs() ? rounded_probs_ * f.prob_spread : 0.0;
    return 4.0 * u_ * std::max({1.0, f.smax, std::fabs(f.row_max), magnitude}) + rounded_sum;
  }

  /// [B,Hq,Sq], or packed [Hq,total_q].
  double lse_of(std::int64_t i) const {
    return buffers_.lse.rank == 2 ? oracle::element(buffers_.lse, h_, i)
                                  : oracle::element(buffers_.lse, b_, h_, i);
  }

  void compare_lse() {
    std::vector<Sample> samples;
    for (std::int64_t i = 0; i < truth_.seqlen_q; ++i) {
      if (facts(i).undecided) continue;
      samples.push_back({i, 0, truth_.lse[row_index(i)], truth_.lse_ideal[row_index(i)], lse_of(i),
                         lse_floor(i)});
    }
    const Judgement judgement = judge(samples, 0.0);
    if (!judgement.ok) fail("lse", judgement.text);
    result_.lse_error = std::max(result_.lse_error, judgement.max_error);
    result_.lse_margin = std::max(result_.lse_margin, judgement.margin);
  }

  /// The row maximum and row sum of a row give its lse; rows without weight hold (-inf, 0).
  void compare_stats() {
    std::vector<Sample> samples;
    for (std::int64_t i = 0; i < truth_.seqlen_q && result_.ok; ++i) {
      if (facts(i).undecided) continue;
      const double max = oracle::element(buffers_.saved_stats, b_, h_, i, 0);
      const double sum = oracle::element(buffers_.saved_stats, b_, h_, i, 1);
      const long double expected = truth_.lse[row_index(i)];
      if (std::isinf(expected) && expected < 0) {
        if (max != -kInfinity || sum != 0.0) {
          fail_element("saved_stats", i, max != -kInfinity ? 0 : 1,
                       max != -kInfinity ? expected : 0, max != -kInfinity ? max : sum,
                       "a row without weight is (-inf, 0)");
        }
        continue;
      }
      const double lse = max + std::log(sum);
      samples.push_back({i, 0, expected, truth_.lse_ideal[row_index(i)], lse, 2.0 * lse_floor(i)});
    }
    if (!result_.ok) return;
    const Judgement judgement = judge(samples, 0.0);
    if (!judgement.ok) fail("saved_stats", judgement.text + " (as lse)");
  }

  void compare_scores() {
    std::vector<Sample> samples;
    const bool probs = truth_.scores_kind == ScoresKind::kProbs;
    for (std::int64_t i = 0; i < truth_.seqlen_q && result_.ok; ++i) {
      const RowFacts& f = facts(i);
      for (std::int64_t j = 0; j < truth_.seqlen_kv && result_.ok; ++j) {
        const std::size_t at =
            row_index(i) * static_cast<std::size_t>(truth_.seqlen_kv) + static_cast<std::size_t>(j);
        const double actual = oracle::element(buffers_.scores_out, b_, h_, i, j);
        const long double expected = truth_.scores[at];
        if (f.undecided) continue;
        if (truth_.visible[at] == 0) {
          judge_hidden_score(i, j, expected, actual);
        } else if (!may_be_zero(f, actual) && (!probs || !structural(f))) {
          samples.push_back({i, j, expected, truth_.scores_ideal[at], actual,
                             score_floor(f, at) + (probs ? prob_floor(expected) : 0.0)});
        }
      }
    }
    if (!result_.ok) return;
    const Judgement judgement = judge(samples, 0.0);
    if (!judgement.ok) fail("scores_out", judgement.text);
  }

  /// Hidden keys: -inf among edited scores, 0 among the others.
  void judge_hidden_score(std::int64_t i, std::int64_t j, long double expected, double actual) {
    if (static_cast<long double>(actual) == expected) return;
    fail_element("scores_out", i, j, expected, actual, "behind a mask");
  }

  const Buffers& buffers_;
  const Truth& truth_;
  MeanSignedError out_mean_;  // over all (b, h)
  double rounded_probs_;      // what rounding loses of a probability
  double u_;
  std::int64_t b_ = 0, h_ = 0;
  double max_error_ = 0.0, max_expected_ = 0.0;  // over all (b, h)
  Comparison result_;
};

}  // namespace

Comparison compare(const Buffers& buffers, const oracle::Truth& truth, Dtype probs) {
  return Comparer(buffers, truth, probs).run();
}

}  // namespace regard::conformance

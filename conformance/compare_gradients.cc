#include "conformance/compare_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/tolerance.h"
#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::conformance {
namespace {

using oracle::Conditioning;
using oracle::Gradient;
using oracle::GradTruth;

// A gradient this much smaller than what it is made of is what cancelling left of it.
constexpr double kCancelled = 1e-2;

/// What of the variance of P and dS rounded to the dtype of the ideal's P a kernel has that rounds
/// to `probs`, or to the 8 bits that the call wants.
double share_of_probs(const GradTruth& truth, Dtype probs) {
  if (truth.dtype == Dtype::kF64) return 1.0;
  const double ideal = oracle::unit_roundoff(truth.dtype_probs);
  const bool narrow = is_f8(truth.dtype_probs);
  const bool coarser = narrow && truth.dtype_d_out == Dtype::kF8E5M2;
  const Dtype rounded = coarser ? truth.dtype_d_out : narrow ? truth.dtype_probs : probs;
  const double share = oracle::unit_roundoff(rounded) / ideal;
  return share * share;
}

bool is_of_keys(const std::string& name) { return name == "d_k" || name == "d_v"; }

class GradComparer {
 public:
  GradComparer(const GradTruth& truth, Dtype probs)
      : probs_share_(share_of_probs(truth, probs)),
        queries_(std::max<std::int64_t>(truth.d_q.shape[2], 1)),
        u_(oracle::unit_roundoff(truth.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32)) {}

  /// `view` is absent where the gradient was not requested. `scale`: what it was multiplied by.
  void compare(const char* name, const TensorView& view, const Gradient& gradient,
               double scale = 1.0) {
    if (!view.present() || !result_.ok) return;
    scale_ = scale;
    max_error_ = max_expected_ = margin_ = 0.0;
    MeanSignedError mean(view.dtype, is_of_keys(name) ? queries_ : 0);
    // Without elements the outer extents may be huge.
    const std::int64_t batch = gradient.exact.empty() ? 0 : gradient.shape[0];
    for (std::int64_t b = 0; b < batch && result_.ok; ++b) {
      for (std::int64_t h = 0; h < gradient.shape[1] && result_.ok; ++h) {
        compare_head(name, view, gradient, b, h, &mean);
      }
    }
    if (const std::string wrong = mean.check(); result_.ok && !wrong.empty()) {
      result_.ok = false;
      result_.text = std::string(name) + ": " + wrong;
    }
    const double error = max_expected_ > 0.0 ? max_error_ / max_expected_ : 0.0;
    result_.parts.push_back({name, error, margin_});
    result_.margin = std::max(result_.margin, margin_);
  }

  /// [1,1,1,N] as N heads of one element.
  void compare_each(const char* name, const TensorView& view, const Gradient& gradient) {
    Gradient each = gradient;
    each.shape[1] = gradient.shape[3];
    each.shape[3] = 1;
    TensorView apart = view;
    if (!view.present()) return;
    apart.rank = 4;
    for (int dim = 0; dim < 4; ++dim) {
      apart.shape[dim] = each.shape[dim];
      apart.strides[dim] = dim == 1 ? view.strides[0] : 0;
    }
    compare(name, apart, each);
  }

  /// Of up to two dimensions all elements are one head's; `gradient` has leading extents of 1.
  void compare_captured(const char* name, const TensorView& view, const Gradient& gradient) {
    if (!view.present()) return;
    TensorView apart = view;
    const int leading = kMaxRank - view.rank;
    apart.rank = kMaxRank;
    for (int dim = 0; dim < kMaxRank; ++dim) {
      apart.shape[dim] = dim < leading ? 1 : view.shape[dim - leading];
      apart.strides[dim] = dim < leading ? 0 : view.strides[dim - leading];
    }
    compare(name, apart, gradient);
  }

  /// `error` of what was compared so far.
  void count_error() {
    for (const GradPart& part : result_.parts) result_.error = std::max(result_.error, part.error);
  }

  GradComparison result() { return result_; }

  /// The largest magnitude as the backward states it, of a gradient that was compared.
  void compare_amax(const char* name, double actual, const Gradient& gradient) {
    if (!result_.ok) return;
    double expected = 0.0, tolerance = 0.0;
    for (std::size_t n = 0; n < gradient.exact.size(); ++n) {
      const Conditioning& c = gradient.sizes[n];
      const double magnitude = std::fabs(static_cast<double>(gradient.exact[n]));
      if (c.huge != 0.0 || !std::isfinite(magnitude)) return;  // nothing is known of it
      expected = std::max(expected, magnitude);
      const double ideal = std::fabs(gradient.ideal[n] - static_cast<double>(gradient.exact[n]));
      tolerance = std::max(tolerance, own_floor(c) + 1.5 * ideal);
    }
    tolerance += 4.0 * oracle::unit_roundoff(Dtype::kF32) * expected +  // it is stored in f32
                 oracle::half_of_smallest(Dtype::kF32);
    if (std::fabs(actual - expected) <= tolerance) return;
    result_.ok = false;
    result_.text = std::string("gradient_amax of ") + name + ": expected " + number_text(expected) +
                   ", actual " + number_text(actual) + ", tolerance " + number_text(tolerance);
  }

 private:
  /// A gradient as it is stored but for rounding: 8-bit floats have a largest number, which what
  /// lies beyond it becomes; in f16 that is infinity.
  long double stored(long double value, Dtype dtype) const {
    const long double scaled = value * scale_;
    if (dtype == Dtype::kF16 && std::isinf(oracle::round_to(static_cast<double>(scaled), dtype))) {
      return std::copysign(HUGE_VALL, scaled);
    }
    if (!is_f8(dtype)) return scaled;
    const auto max = static_cast<long double>(-oracle::lowest(dtype));
    return std::isnan(scaled) ? scaled : std::clamp(scaled, -max, max);
  }

  /// What rounding may do to this element alone.
  double own_floor(const Conditioning& c) const {
    const double variance = c.delta_variance + probs_share_ * c.variance;
    const double floor =
        4.0 * u_ * (c.scores + c.cancelled) + 2.0 * std::sqrt(variance) + c.flushed;
    return std::isnan(floor) ? 0.0 : floor;  // a NaN is compared as one
  }

  void compare_head(const char* name, const TensorView& view, const Gradient& gradient,
                    std::int64_t b, std::int64_t h, MeanSignedError* mean) {
    std::vector<Sample> samples;
    double max_expected = 0.0, max_size = 0.0;
    for (std::int64_t i = 0; i < gradient.shape[2]; ++i) {
      for (std::int64_t d = 0; d < gradient.shape[3]; ++d) {
        const std::size_t at = gradient.index(b, h, i, d);
        const Conditioning& c = gradient.sizes[at];
        const Sample s{i,
                       d,
                       stored(gradient.exact[at], view.dtype),
                       static_cast<double>(stored(gradient.ideal[at], view.dtype)),
                       oracle::element(view, b, h, i, d),
                       own_floor(c) * scale_};
        if (c.terms == 0 && s.actual != s.expected)
          return fail(name, b, h, s, "nothing reaches it");
        if (c.huge != 0.0) {
          if (!within_structure(s, c, view.dtype))
            return fail(name, b, h, s, "rows of huge scores reach it");
          continue;
        }
        if (std::isfinite(s.expected)) {
          max_expected = std::max(max_expected, std::fabs(static_cast<double>(s.expected)));
          max_size = std::max(max_size, c.cancelled * scale_);
        }
        samples.push_back(s);
      }
    }
    const double floor = 2.0 * oracle::unit_roundoff(view.dtype) * max_expected +
                         oracle::half_of_smallest(view.dtype);
    const Judgement judgement = judge(samples, floor, view.dtype);
    mean->add(samples);
    if (!judgement.ok) fail(name, b, h, judgement.text);
    margin_ = std::max(margin_, judgement.margin);
    // Where a head's gradient is 0 but for cancelling, an error relative to it is meaningless.
    if (max_expected < kCancelled * max_size) return;
    max_error_ = std::max(max_error_, judgement.max_error);
    max_expected_ = std::max(max_expected_, max_expected);
  }

  /// Probabilities of a row of huge scores are anything in [0, 1]; from an lse without a fraction
  /// nothing is known of them.
  bool within_structure(const Sample& s, const Conditioning& c, Dtype dtype) const {
    if (std::isinf(c.huge) || std::isnan(c.huge) || std::isnan(s.expected)) return true;
    const auto expected = static_cast<double>(s.expected);
    const double largest = std::fabs(expected) + c.huge * scale_ + s.row_floor;
    if (s.actual == expected || std::isinf(oracle::round_to(largest, dtype))) return true;
    const double rounding =
        oracle::unit_roundoff(dtype) * largest + oracle::half_of_smallest(dtype);
    return std::fabs(s.actual - expected) <= c.huge * scale_ + s.row_floor + rounding;
  }

  void fail(const char* name, std::int64_t b, std::int64_t h, const std::string& text) {
    result_.ok = false;
    result_.text =
        std::string(name) + " b " + std::to_string(b) + " h " + std::to_string(h) + " " + text;
  }

  void fail(const char* name, std::int64_t b, std::int64_t h, const Sample& s, const char* why) {
    fail(name, b, h,
         "row " + std::to_string(s.row) + " column " + std::to_string(s.column) + ": expected " +
             number_text(s.expected) + ", actual " + number_text(s.actual) + " (" + why + ")");
  }

  double probs_share_;  // of the variance of probabilities in the dtype of q
  std::int64_t queries_;
  double u_;
  double scale_ = 1.0;                                          // of one gradient
  double max_error_ = 0.0, max_expected_ = 0.0, margin_ = 0.0;  // of one gradient
  GradComparison result_;
};

}  // namespace

GradComparison compare_gradients(const AttentionGradRequest& request, const GradTruth& truth,
                                 Dtype probs) {
  GradComparer comparer(truth, probs);
  const struct {
    const char* name;
    const TensorView& view;
    const Gradient& gradient;
  } main[] = {{"d_q", request.d_q, truth.d_q},
              {"d_k", request.d_k, truth.d_k},
              {"d_v", request.d_v, truth.d_v}};
  std::int64_t index = 0;
  for (const auto& [name, view, gradient] : main) {
    const TensorView& scales = request.gradient_scales;
    comparer.compare(name, view, gradient, scales.present() ? oracle::element(scales, index) : 1.0);
    if (request.gradient_amax.present() && view.present()) {
      comparer.compare_amax(name, oracle::element(request.gradient_amax, index), gradient);
    }
    ++index;
  }
  comparer.count_error();  // d_bias and d_sinks cancel more than one common number could bound
  comparer.compare("d_bias", request.d_bias, truth.d_bias);
  comparer.compare_each("d_sinks", request.d_sinks, truth.d_sinks);
  const struct {
    const char* name;
    const TensorView& view;
  } captured[oracle::kCapturedCount] = {
      {"d_captured0", request.d_captured0}, {"d_captured1", request.d_captured1},
      {"d_captured2", request.d_captured2}, {"d_captured3", request.d_captured3},
      {"d_captured4", request.d_captured4}, {"d_captured5", request.d_captured5},
      {"d_captured6", request.d_captured6}, {"d_captured7", request.d_captured7}};
  for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
    comparer.compare_captured(captured[slot].name, captured[slot].view, truth.d_captured[slot]);
  }
  return comparer.result();
}

}  // namespace regard::conformance

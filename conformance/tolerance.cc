#include "conformance/tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "oracle/number.h"

namespace regard::conformance {
namespace {

/// The error of `actual`; NaN where a NaN or infinity is in the wrong place.
long double error_of(long double expected, double actual) {
  if (std::isnan(expected)) return std::isnan(actual) ? 0.0L : std::nanl("");
  if (std::isinf(expected)) {
    return static_cast<long double>(actual) == expected ? 0.0L : std::nanl("");
  }
  if (!std::isfinite(actual)) return std::nanl("");
  return std::fabs(static_cast<long double>(actual) - expected);
}

/// The ideal's error; its own overflow allows nothing.
double ideal_error(const Sample& s) {
  const long double error = error_of(s.expected, s.ideal);
  return std::isfinite(error) ? static_cast<double>(error) : 0.0;
}

std::string sample_text(const Sample& s, const std::string& tolerance) {
  return "row " + std::to_string(s.row) + " column " + std::to_string(s.column) + ": expected " +
         number_text(s.expected) + ", actual " + number_text(s.actual) + ", " + tolerance;
}

double square(double x) { return x * x; }

double share(double error, double tolerance) { return error == 0.0 ? 0.0 : error / tolerance; }

// What rounding to nearest loses of 16 bits, in units of u rms(O): 0.58 at most on average, and up
// to 1 where few outputs decide (docs/numerics.md).
constexpr double kRounding = 0.7;
constexpr double kFewRounding = 1.0;
constexpr double kManyValues = 85.0;  // what 256 values of a normal distribution count
constexpr std::size_t kValuesOfMean = 4096;
constexpr double kDistinctOfMean = 256.0;
constexpr double kMaxMeanError = 0.1;  // of an ulp; the deviation of 256 values is 0.02

/// How many different numbers decide a sum of |x|^power over numbers as stored: (sum w)^2 / sum
/// w^2, where w is what all that are equal add to it.
double count_effective(std::vector<double> stored, int power) {
  std::sort(stored.begin(), stored.end());
  double sum = 0.0, squares = 0.0;
  for (std::size_t begin = 0, end; begin < stored.size(); begin = end) {
    for (end = begin; end < stored.size() && stored[end] == stored[begin];) ++end;
    const double weight = static_cast<double>(end - begin) * std::pow(stored[begin], power);
    sum += weight;
    squares += weight * weight;
  }
  return squares > 0.0 ? sum * sum / squares : 0.0;
}

/// u max(rms(expected), smallest normal number) times what rounding may lose.
double rounding_of(const std::vector<Sample>& samples, Dtype dtype) {
  double squares = 0.0;
  std::vector<double> stored;
  for (const Sample& s : samples) {
    const auto value = static_cast<double>(s.expected);
    if (!std::isfinite(value)) continue;
    squares += value * value;
    stored.push_back(oracle::round_to(value, dtype));
  }
  if (stored.empty()) return 0.0;
  const double rms = std::sqrt(squares / static_cast<double>(stored.size()));
  const bool few = count_effective(std::move(stored), 2) < kManyValues;
  return (few ? kFewRounding : kRounding) *
         std::max(oracle::unit_roundoff(dtype) * rms, oracle::half_of_smallest(dtype));
}

}  // namespace

std::string number_text(long double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.8Le", value);
  return text;
}

bool is_16_bit(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF16; }

Judgement judge(const std::vector<Sample>& samples, double floor, Dtype dtype) {
  Judgement result;
  const bool narrow = is_16_bit(dtype);
  double excess_max = 0.0, ideal_max = 0.0, squares = 0.0, ideal_squares = 0.0, floor_squares = 0.0;
  for (const Sample& s : samples) {
    const long double exact_error = error_of(s.expected, s.actual);
    if (std::isnan(exact_error)) {
      return {false, sample_text(s, "NaN and infinities must match"), HUGE_VAL, HUGE_VAL};
    }
    const auto error = static_cast<double>(exact_error);
    result.max_error = std::max(result.max_error, error);
    if (!std::isfinite(s.row_floor)) continue;  // of a row with NaN or infinity in it
    const double excess = std::max(0.0, error - s.row_floor);
    const double ideal = ideal_error(s);
    excess_max = std::max(excess_max, excess);
    ideal_max = std::max(ideal_max, ideal);
    squares += narrow ? error * error : excess * excess;
    ideal_squares += ideal * ideal;
    floor_squares += s.row_floor * s.row_floor;
  }
  if (samples.empty()) return result;
  const auto count = static_cast<double>(samples.size());
  const double tolerance_max = 1.5 * ideal_max + floor;
  const double ideal_rms = 1.5 * std::sqrt(ideal_squares / count);
  const double tolerance_rms =
      narrow ? std::hypot(ideal_rms, rounding_of(samples, dtype), std::sqrt(floor_squares / count))
             : ideal_rms + floor;
  const double rms = std::sqrt(squares / count);
  result.margin = std::max(share(excess_max, tolerance_max), share(rms, tolerance_rms));
  if (excess_max <= tolerance_max && rms <= tolerance_rms) return result;
  result.ok = false;
  const bool by_max = excess_max > tolerance_max;
  for (const Sample& s : samples) {
    const double excess = static_cast<double>(error_of(s.expected, s.actual)) - s.row_floor;
    if (excess <= (by_max ? tolerance_max : rms)) continue;
    result.text = sample_text(
        s, by_max ? "tolerance " + number_text(tolerance_max + s.row_floor)
                  : "RMS " + number_text(rms) + " over tolerance " + number_text(tolerance_rms));
    break;
  }
  if (result.text.empty())
    result.text = "RMS " + number_text(rms) + " over tolerance " + number_text(tolerance_rms);
  return result;
}

void MeanSignedError::add(const std::vector<Sample>& samples) {
  if (!is_16_bit(dtype_)) return;
  const double u = oracle::unit_roundoff(dtype_);
  const double smallest_normal = oracle::half_of_smallest(dtype_) / u;
  double floor = 0.0;  // of the row so far, or of the head
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const Sample& s = samples[n];
    const bool ends_group = n > 0 && queries_ == 0 && s.row != samples[n - 1].row;
    if (ends_group) floor_squares_ += square(std::exchange(floor, 0.0));
    const auto expected = static_cast<double>(s.expected);
    if (!std::isfinite(expected) || !std::isfinite(s.actual)) continue;
    if (std::fabs(expected) < smallest_normal) continue;  // most round to 0, towards it
    // Nothing is known of it: sums that absorb it leave 0, an error towards it, too.
    if (s.row_floor >= std::fabs(expected)) continue;
    const double ulp = std::copysign(std::ldexp(2.0 * u, std::ilogb(expected)), expected);
    // What cancelled is off by many of its units, to either side.
    sum_ += std::clamp((s.actual - expected) / ulp, -1.0, 1.0);
    ideal_sum_ += std::isfinite(s.ideal) ? std::clamp((s.ideal - expected) / ulp, -1.0, 1.0) : 0.0;
    const double own = s.row_floor / std::fabs(ulp);
    // Three deviations of what is off by a whole unit to either side; below, floors have two.
    floor += own < 3.0 ? own : 3.0;
    stored_.push_back(oracle::round_to(expected, dtype_));
  }
  floor_squares_ += square(floor) / static_cast<double>(std::max<std::int64_t>(queries_, 1));
}

std::string MeanSignedError::check() const {
  if (stored_.size() < kValuesOfMean || count_effective(stored_, 0) < kDistinctOfMean) return "";
  const auto count = static_cast<double>(stored_.size());
  const double mean = sum_ / count;
  const double tolerance =
      kMaxMeanError + 1.5 * std::fabs(ideal_sum_ / count) + std::sqrt(floor_squares_) / count;
  if (std::fabs(mean) <= tolerance) return "";
  return "the mean signed error of " + std::to_string(stored_.size()) + " values is " +
         number_text(mean) + " units in the last place, expected at most " +
         number_text(tolerance) + " to either side: they are not rounded to nearest";
}

}  // namespace regard::conformance

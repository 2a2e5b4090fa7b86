#include "conformance/bar.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

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

/// The ideal's error; its own overflow is nobody's allowance.
double ideal_error(const Sample& s) {
  const long double error = error_of(s.expected, s.ideal);
  return std::isfinite(error) ? static_cast<double>(error) : 0.0;
}

std::string sample_text(const Sample& s, const std::string& bar) {
  return "row " + std::to_string(s.row) + " column " + std::to_string(s.column) + ": expected " +
         number_text(s.expected) + ", actual " + number_text(s.actual) + ", " + bar;
}

double share(double error, double bar) { return error == 0.0 ? 0.0 : error / bar; }

}  // namespace

std::string number_text(long double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.8Le", value);
  return text;
}

Judgement judge(const std::vector<Sample>& samples, double floor) {
  Judgement result;
  double excess_max = 0.0, ideal_max = 0.0, excess_squares = 0.0, ideal_squares = 0.0;
  for (const Sample& s : samples) {
    const long double error = error_of(s.expected, s.actual);
    if (std::isnan(error)) {
      return {false, sample_text(s, "NaN and infinities must match"), HUGE_VAL, HUGE_VAL};
    }
    result.max_error = std::max(result.max_error, static_cast<double>(error));
    const double excess = std::max(0.0, static_cast<double>(error) - s.row_floor);
    const double ideal = ideal_error(s);
    excess_max = std::max(excess_max, excess);
    ideal_max = std::max(ideal_max, ideal);
    excess_squares += excess * excess;
    ideal_squares += ideal * ideal;
  }
  if (samples.empty()) return result;
  const auto count = static_cast<double>(samples.size());
  const double bar_max = 1.5 * ideal_max + floor;
  const double bar_rms = 1.5 * std::sqrt(ideal_squares / count) + floor;
  const double rms = std::sqrt(excess_squares / count);
  result.margin = std::max(share(excess_max, bar_max), share(rms, bar_rms));
  if (excess_max <= bar_max && rms <= bar_rms) return result;
  result.ok = false;
  const bool by_max = excess_max > bar_max;
  for (const Sample& s : samples) {
    const double excess = static_cast<double>(error_of(s.expected, s.actual)) - s.row_floor;
    if (excess <= (by_max ? bar_max : rms)) continue;
    result.text =
        sample_text(s, by_max ? "bar " + number_text(bar_max + s.row_floor)
                              : "RMS " + number_text(rms) + " over bar " + number_text(bar_rms));
    break;
  }
  if (result.text.empty())
    result.text = "RMS " + number_text(rms) + " over bar " + number_text(bar_rms);
  return result;
}

}  // namespace regard::conformance

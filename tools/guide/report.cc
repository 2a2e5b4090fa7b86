#include "tools/guide/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace regard::guide {

double Measured::quantile(double share) const {
  if (seconds.empty()) return 0.0;
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

double Measured::median() const { return quantile(0.5); }

const Sweep* find_sweep(const Report& report, const std::string& id) {
  for (const Sweep& sweep : report.sweeps) {
    if (sweep.id == id) return &sweep;
  }
  return nullptr;
}

const Measured* find_row(const Point& point, const std::string& name) {
  for (const Measured& row : point.rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

double figure(const Sweep& sweep, const Point& point, const Measured& row) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (sweep.unit == Unit::kBytes) {
    return row.workspace_bytes < 0 ? kNone : static_cast<double>(row.workspace_bytes);
  }
  const double seconds = row.median();
  if (seconds <= 0.0) return kNone;
  switch (sweep.unit) {
    case Unit::kGflops: return point.operations / seconds * 1e-9;
    case Unit::kGbps: return point.bytes / seconds * 1e-9;
    default: return seconds;
  }
}

std::vector<std::string> row_names(const Sweep& sweep) {
  std::vector<std::string> names;
  for (const Point& point : sweep.points) {
    for (const Measured& row : point.rows) {
      if (std::find(names.begin(), names.end(), row.name) == names.end()) names.push_back(row.name);
    }
  }
  return names;
}

const Measured* fastest(const Point& point) {
  const Measured* best = nullptr;
  for (const Measured& row : point.rows) {
    if (row.is_peer || row.seconds.empty()) continue;
    if (best == nullptr || row.median() < best->median()) best = &row;
  }
  return best;
}

bool differ(const Measured& a, const Measured& b) {
  constexpr double kTie = 1.05;
  const Measured& faster = a.median() <= b.median() ? a : b;
  const Measured& slower = &faster == &a ? b : a;
  if (faster.seconds.empty() || slower.seconds.empty()) return false;
  if (faster.seconds.size() != slower.seconds.size()) {
    return slower.median() >= kTie * faster.median() &&
           faster.quantile(0.75) < slower.quantile(0.25);
  }
  Measured ratios;  // within rounds, so that a change of the machine's speed cancels
  for (std::size_t i = 0; i < faster.seconds.size(); ++i) {
    ratios.seconds.push_back(slower.seconds[i] / faster.seconds[i]);
  }
  return ratios.median() >= kTie && ratios.quantile(0.25) > 1.0;
}

std::string count_words(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string short_words(double value) {
  const double size = std::abs(value);
  if (size >= 999.5 && size < 1e18) return count_words(std::llround(value));
  if (size >= 99.95 || value == 0.0) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.9995) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

std::string seconds_words(double seconds) {
  if (seconds < 0.9995e-3) return short_words(seconds * 1e6) + " us";
  if (seconds < 0.9995) return short_words(seconds * 1e3) + " ms";
  return short_words(seconds) + " s";
}

std::string bytes_words(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024.0;
  return short_words(bytes) + " " + kUnits[unit];
}

std::string figure_words(Unit unit, double value) {
  switch (unit) {
    case Unit::kGflops: return short_words(value) + " GFLOP/s";
    case Unit::kGbps: return short_words(value) + " GB/s";
    case Unit::kSeconds: return seconds_words(value);
    case Unit::kBytes: break;
  }
  return bytes_words(value);
}

}  // namespace regard::guide

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/measure/call_counts.h"

namespace regard {
namespace {

struct Point {
  CallCounts counts;
  double seconds;
};

/// The error that a fit makes as small as it can. The last part keeps a term that the points do not
/// determine where it was.
double error_of(const CostTerms& terms, const CostTerms& start, const std::vector<Point>& points) {
  double error = 0.0;
  for (const Point& point : points) {
    error += std::abs(std::log(seconds_of(terms, point.counts) / point.seconds));
  }
  constexpr double kPull = 1e-2;
  double pull = 0.0;
  std::vector<double> from;
  for_each_cost_term(start, [&](const char*, double term) { from.push_back(term); });
  std::size_t i = 0;
  for_each_cost_term(
      terms, [&](const char*, double term) { pull += std::abs(std::log(term / from[i++])); });
  return error + kPull * pull * static_cast<double>(points.size());
}

/// Terms of 0 could never grow by factors.
CostTerms above_zero(CostTerms terms) {
  for_each_cost_term(terms, [](const char* name, double& term) {
    const bool is_time = name[0] == 'c' || name[0] == 't';  // call, task
    term = std::clamp(term, is_time ? 1e-8 : 1e-2, 1e6);
  });
  return terms;
}

/// One term after the other by ever smaller factors, until none helps.
CostTerms descend(const CostTerms& start, const std::vector<Point>& points) {
  CostTerms best = start;
  double best_error = error_of(best, start, points);
  for (const double step : {8.0, 4.0, 2.0, 1.4, 1.2, 1.1, 1.05, 1.02}) {
    constexpr int kMaxPasses = 40;
    bool improved = true;
    for (int pass = 0; improved && pass < kMaxPasses; ++pass) {
      improved = false;
      for (int term = 0; term < 6; ++term) {  // not the spread
        for (const double factor : {step, 1.0 / step}) {
          CostTerms tried = best;
          int i = 0;
          for_each_cost_term(tried, [&](const char*, double& value) {
            if (i++ == term) value *= factor;
          });
          tried = above_zero(tried);
          const double error = error_of(tried, start, points);
          if (error < best_error - 1e-12) {
            best = tried;
            best_error = error;
            improved = true;
          }
        }
      }
    }
  }
  return best;
}

/// From the terms of another machine and from plain ones: a descent along one term at a time ends
/// in the nearest valley.
CostTerms fit_terms(const CostTerms& start, const std::vector<Point>& points) {
  constexpr CostTerms kPlain = {2e-6, 3e-7, 1.2, 30.0, 6.0, 1.2, 1.3};
  const CostTerms first = above_zero(start);
  const CostTerms near = descend(first, points), other = descend(kPlain, points);
  constexpr double kBetter = 0.95;  // what the points hardly determine stays near the start
  const bool is_better = error_of(other, other, points) < kBetter * error_of(near, near, points);
  return is_better ? other : near;
}

/// The factor that nine of ten points are within.
double spread_of(const CostTerms& terms, const std::vector<Point>& points) {
  std::vector<double> off;
  for (const Point& point : points) {
    off.push_back(std::abs(std::log(seconds_of(terms, point.counts) / point.seconds)));
  }
  const auto ninth = static_cast<std::ptrdiff_t>(off.size() * 9 / 10);
  std::nth_element(off.begin(), off.begin() + std::min<std::ptrdiff_t>(ninth, off.size() - 1),
                   off.end());
  return std::max(
      kMinSpread,
      std::exp(off[static_cast<std::size_t>(std::min<std::ptrdiff_t>(ninth, off.size() - 1))]));
}

}  // namespace

CostModel fit_costs(const CostModel& start, std::span<const CostObservation> observations) {
  CostModel fitted = start;
  for (CostEntry& entry : fitted.entries) {
    std::vector<Point> points;
    for (const CostObservation& o : observations) {
      if (o.backend != entry.backend || !(o.seconds > 0.0)) continue;
      if (kind_of(o.params, o.backward) != entry.kind || types_of(o.params) != entry.types)
        continue;
      points.push_back({count_call(fitted, o.backend, o.params, o.backward), o.seconds});
    }
    if (points.size() < static_cast<std::size_t>(kMinObservations)) continue;
    entry.terms = fit_terms(entry.terms, points);
    entry.terms.spread = spread_of(entry.terms, points);
  }
  return fitted;
}

}  // namespace regard

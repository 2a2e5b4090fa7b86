#include <algorithm>
#include <array>
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

constexpr int kTerms = 6;  // that are fitted: all but the spread
using Vector = std::array<double, kTerms>;
using Matrix = std::array<Vector, kTerms>;

/// The logarithms of terms: steps of a fit are factors, and no term becomes negative.
Vector logarithms(const CostTerms& terms) {
  Vector logs = {};
  std::size_t i = 0;
  for_each_cost_term(terms, [&](const char* name, double term) {
    if (i == kTerms) return;
    const bool is_time = name[0] == 'c' || name[0] == 't';  // call, task
    logs[i++] = std::log(std::clamp(term, is_time ? 1e-8 : 1e-2, 1e6));
  });
  return logs;
}

CostTerms terms_of(const Vector& logs) {
  CostTerms terms;
  std::size_t i = 0;
  for_each_cost_term(terms, [&](const char*, double& term) {
    if (i < kTerms) term = std::exp(logs[i++]);
  });
  return terms;
}

/// How far the prediction is from the time, as a logarithm.
double residual_of(const Vector& logs, const Point& point) {
  return std::log(seconds_of(terms_of(logs), point.counts) / point.seconds);
}

/// What a fit makes small: residuals, in full beyond some 5 %, so that disturbed times do not
/// decide; and the squared way from where a descent begins, so that terms stay there which the
/// points do not determine.
struct Error {
  static constexpr double kSmall = 0.05, kRidge = 1e-3;
  const std::vector<Point>& points;
  const Vector& start;

  double ridge() const { return kRidge * static_cast<double>(points.size()); }

  double at(const Vector& logs) const {
    double error = 0.0;
    for (const Point& point : points) error += std::hypot(residual_of(logs, point), kSmall);
    for (std::size_t i = 0; i < kTerms; ++i) {
      error += ridge() * (logs[i] - start[i]) * (logs[i] - start[i]);
    }
    return error;
  }

  /// Its gradient, and its curvature as if residuals were linear in the logarithms.
  void differentiate(const Vector& logs, Vector* gradient, Matrix* curvature) const {
    *gradient = {};
    *curvature = {};
    constexpr double kStep = 1e-4;
    for (const Point& point : points) {
      const double residual = residual_of(logs, point), weight = 1.0 / std::hypot(residual, kSmall);
      Vector slope = {};
      for (std::size_t i = 0; i < kTerms; ++i) {
        Vector moved = logs;
        moved[i] += kStep;
        slope[i] = (residual_of(moved, point) - residual) / kStep;
      }
      for (std::size_t i = 0; i < kTerms; ++i) {
        (*gradient)[i] += weight * slope[i] * residual;
        for (std::size_t j = 0; j < kTerms; ++j) (*curvature)[i][j] += weight * slope[i] * slope[j];
      }
    }
    for (std::size_t i = 0; i < kTerms; ++i) {
      (*gradient)[i] += 2.0 * ridge() * (logs[i] - start[i]);
      (*curvature)[i][i] += 2.0 * ridge();
    }
  }
};

/// x of a * x = b by Cholesky's factors; a is symmetric and positive, which Error's ridge sees to.
Vector solve(Matrix a, Vector b) {
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(sum) : sum / a[j][j];
    }
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (std::size_t i = kTerms; i-- > 0;) {
    for (std::size_t k = i + 1; k < kTerms; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

/// All terms at once, by Gauss-Newton steps as Levenberg and Marquardt damp them.
Vector descend(const Error& error) {
  Vector best = error.start;
  double least = error.at(best), damping = 1e-2;
  constexpr int kMaxSteps = 60;
  for (int i = 0; i < kMaxSteps; ++i) {
    Vector gradient;
    Matrix curvature;
    error.differentiate(best, &gradient, &curvature);
    const double before = least;
    constexpr int kTries = 8;
    for (int tried = 0; tried < kTries && least == before; ++tried) {
      Matrix damped = curvature;
      for (std::size_t k = 0; k < kTerms; ++k) damped[k][k] *= 1.0 + damping;
      const Vector step = solve(damped, gradient);
      Vector next = best;
      constexpr double kFurthest = 1.5;  // a factor of 4.5
      for (std::size_t k = 0; k < kTerms; ++k)
        next[k] -= std::clamp(step[k], -kFurthest, kFurthest);
      const double found = error.at(next);
      if (found < least) {
        best = next;
        least = found;
        damping = std::max(damping / 5.0, 1e-8);
      } else {
        damping *= 4.0;
      }
    }
    if (before - least < 1e-7) break;
  }
  return best;
}

/// From the terms of another machine and from plain ones: a descent ends in a local minimum.
CostTerms fit_terms(const CostTerms& start, const std::vector<Point>& points) {
  constexpr CostTerms kPlain = {2e-6, 3e-7, 1.2, 30.0, 6.0, 1.2, 1.3};
  const Vector given = logarithms(start), plain = logarithms(kPlain);
  const Error of_given = {points, given}, of_plain = {points, plain};
  const Vector near = descend(of_given), other = descend(of_plain);
  constexpr double kBetter = 0.95;  // what the points hardly determine stays near the start
  return terms_of(of_plain.at(other) < kBetter * of_given.at(near) ? other : near);
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
      if (o.backend != entry.backend || !(o.seconds > 0.0) || !std::isfinite(o.seconds)) continue;
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

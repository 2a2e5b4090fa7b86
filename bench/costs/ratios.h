#pragma once

#include <map>
#include <string>
#include <vector>

#include "regard/cost.h"
#include "regard/selection.h"

// Measured times over predicted ones, by what a problem is.

namespace regard::bench {

/// Within this factor a prediction is good.
inline constexpr double kGood = 1.3;
inline bool is_good(double ratio) { return ratio < kGood && ratio > 1 / kGood; }

class Ratios {
 public:
  /// Returns the ratio; -1 where the selection predicts nothing for the backend.
  double add(const Selection& selection, const CostObservation& time);

  /// Of each group of times: how many are good, and the quartiles of their ratios. "chosen": the
  /// backend that runs, once a problem.
  void print() const;

 private:
  std::map<std::string, std::vector<double>> groups_;
};

/// "decode", "short", "prefill" or "backward"
std::string kind_name(const CostObservation& time);

}  // namespace regard::bench

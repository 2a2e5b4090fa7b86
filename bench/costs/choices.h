#pragma once

#include <string>
#include <vector>

#include "bench/costs/problems.h"
#include "regard/context.h"
#include "regard/cost.h"

// Choices beside that of a backend: how padded sequences are computed, and in which format a cache
// is kept. Each way is measured, in turns.

namespace regard::bench {

struct Way {
  std::string name;
  double predicted = -1.0;  // seconds; -1: unknown
  double seconds = 0.0;     // measured, the median
};

struct Choice {
  std::string words;
  std::string chosen;  // the way that regard takes, or predicts to be the fastest
  std::vector<Way> ways;
  std::vector<CostObservation> times;  // of ways that are calls of a backend
  std::string error;                   // why nothing was measured
};

/// attention_padded() of a random batch: padded or packed. `chosen` is what padding "auto" takes.
Choice measure_padded(Context& context, Draw* draw, int rounds);

/// A case with each format that its keys and values may have, on the backend that the case runs on.
Choice measure_formats(Context& context, const std::string& words, int rounds);

}  // namespace regard::bench

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/context.h"
#include "tools/guide/report.h"

namespace regard::guide {

struct MeasureOptions {
  double seconds = 240.0;  // measuring ends by then; one turn may be above it
  bool quick = false;      // fewer points
  std::vector<Case> problems;
  std::string peer_python;  // an interpreter that has PyTorch; "" for none
  /// Called before each turn with the share that is done, 0 to 1.
  std::function<void(double)> progress;
  /// Whether to stop; the report is then of no use.
  std::function<bool()> stop;
};

/// Measures this machine on the context's threads. An error where the peer cannot be started.
Expected<Report> measure_machine(const Env& env, const MeasureOptions& options);

}  // namespace regard::guide

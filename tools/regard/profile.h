#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "regard/context.h"
#include "regard/policy.h"
#include "tools/regard/run_backend.h"
#include "tools/regard/run_input.h"

namespace regard::cli {

/// Where the time of one attention() goes when its plan is cached: medians over the calls, seconds.
struct Profile {
  std::int64_t calls = 0;
  double call = 0.0;  // the whole
  double describe = 0.0;
  double plan = 0.0;              // the look-up in the cache
  std::optional<double> prepare;  // what is left: workspace, checks; none without an executor's run
  double execute = 0.0;           // from the first worker's start on; without a run, prepare too
  std::vector<double> workers;    // what each worker of the executor took; empty without a run
  double imbalance = 1.0;         // the longest worker over the mean worker
  double busy = 1.0;              // share of workers * execute in which a worker computed
  int threads = 1;                // most that took part in a call
};

/// Calls attention() with `policy` narrowed to `run.backend`, after one call that is not timed, as
/// often as `timing` states; out and lse of `run` are written again.
Expected<Profile> profile_on_backend(Context& context, const RunInput& input, const BackendRun& run,
                                     const Policy& policy, const Timing& timing);

}  // namespace regard::cli

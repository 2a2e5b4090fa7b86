#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "conformance/coverage.h"
#include "conformance/run.h"
#include "regard/context.h"

namespace regard::conformance {

struct RandomOptions {
  std::int64_t count = 3000;
  std::uint64_t seed = 1;
  std::vector<BackendRef> backends;  // empty: every backend of the context that is built
  std::size_t max_failures = 5;      // then stop
  double gradients = 0.5;            // share of gradient cases, where a backend offers a backward
  bool guard_pages = true;           // in every fourth case, above and below by turns
  /// Called after every case; false stops the run.
  std::function<bool(std::int64_t done)> progress;
};

struct RandomResult {
  std::int64_t cases = 0;
  bool stopped = false;               // by progress or max_failures
  std::vector<std::string> failures;  // each with its repro line
  Coverage coverage;
  struct Worst {
    std::string name;         // "math f32"
    double out_error = 0.0;   // normwise, data of |score| <= 16 and no rows judged by structure
    double out_margin = 0.0;  // share of the tolerance, all data
    double lse_margin = 0.0;
    double grad_error = 0.0;  // as out_error; d_q, d_k, d_v, d_bias and d_sinks
    double grad_margin = 0.0;
  };
  std::vector<Worst> worst;

  bool ok() const noexcept { return failures.empty(); }
  /// Coverage and the worst errors, for people.
  std::string table() const;
};

/// Runs random cases on each backend; the context's own environment is used.
RandomResult run_random(Context& context, const RandomOptions& options);

}  // namespace regard::conformance

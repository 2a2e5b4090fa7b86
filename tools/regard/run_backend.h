#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "conformance/compare.h"
#include "regard/context.h"
#include "tools/regard/run_input.h"

namespace regard::cli {

/// Runs against the clock.
struct TimedRuns {
  std::vector<double> seconds;  // of each

  double median_seconds() const;
};

/// What became of one problem on one backend.
struct BackendRun : TimedRuns {
  BackendRef backend;
  KernelPlan kernel;
  std::int64_t workspace_bytes = 0;
  RunOutputs outputs;
};

/// How often a problem is timed: `repeat` times, or, where it is 0, up to seven times within about
/// two seconds.
struct Timing {
  static constexpr std::int64_t kUsualRuns = 7;

  std::int64_t repeat = 0;
  void (*after_each)(void*) = nullptr;  // called after every timed run
  void* user = nullptr;

  std::int64_t max_runs() const;
  bool is_enough(std::int64_t runs, double seconds) const;
};

/// Calls `call` once to warm up and then timed.
Expected<TimedRuns> time_runs(const Timing& timing, const std::function<Status()>& call);

/// `policy` with `backend` as the only one.
Policy narrowed_to(const Policy& policy, const BackendRef& backend);

/// Plans with `policy` narrowed to `backend`, runs once to warm up and then timed, with a workspace
/// of exactly the bytes that the plan states.
Expected<BackendRun> run_on_backend(Context& context, const RunInput& input,
                                    const BackendRef& backend, const Policy& policy,
                                    const Timing& timing);

/// Rows past their sequence's length.
struct PaddingCheck {
  std::int64_t rows = 0;
  std::int64_t wrong = 0;  // rows whose out is not exactly 0 or whose lse is not -inf
};
PaddingCheck check_padding(const RunInput& input, const RunOutputs& outputs);

/// max|a - b| / max|a| over finite elements of out; infinite where NaN or infinities differ.
double largest_difference(const RunOutputs& a, const RunOutputs& b);

/// Bytes of the keys and values that lengths leave.
double kv_bytes(const RunInput& input);

/// Operations of a forward and of a backward, as forward_work() and backward_work() count them.
double flop_count(const RunInput& input);
double backward_flop_count(const RunInput& input);

}  // namespace regard::cli

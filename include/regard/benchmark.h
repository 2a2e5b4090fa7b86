#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "regard/context.h"
#include "regard/interrupt.h"
#include "regard/machine_rates.h"
#include "regard/work.h"

namespace regard {

/// One backend (or another implementation that it is compared with) in one direction.
struct BenchmarkRow {
  std::string name;     // "flash", "torch", ...
  std::string variant;  // of Backend::variants(); "" is the default
  bool backward = false;
  std::string reason;                 // why it was not measured; empty where it was
  std::string kernel;                 // of the plan; "" where it is unknown
  std::int32_t workers = 0;           // of the plan; 0: unknown
  std::int64_t workspace_bytes = -1;  // of the plan; -1: unknown
  Work work;
  std::vector<double> seconds;  // of one call, for each timed run

  /// A quantile of the runs' seconds: 0 the fastest, 0.5 the median, 1 the slowest, interpolated
  /// between two runs. 0 without runs.
  REGARD_EXPORT double quantile(double share) const;
};

/// What benchmark() measured. to_string() is the table for people.
struct Benchmark {
  AttentionParams params;
  std::string chosen;      // the backend that a call would run on; "error" where none can
  std::string decided_by;  // as Selection's
  MachineRates machine;    // on the threads of a call
  MachineRates one_thread;
  std::vector<BenchmarkRow> rows;  // forward, then backward, each in the order of preference
  std::int32_t rounds = 0;         // in each of them every row had one turn
  bool interrupted = false;        // ended early; `rounds` were completed
  std::vector<std::string> notes;
};

struct BenchmarkOptions {
  double seconds = 1.0;            // measure for at least this long and at least three rounds
  std::int32_t rounds = 0;         // this many rounds instead; 0: by `seconds`
  bool variants = false;           // rows of the backends' variants, too, behind their defaults
  Interrupt::Poll poll = nullptr;  // returning true ends measuring early, also within a call
  void* poll_state = nullptr;
};

/// Measures every backend that can run the request under the policy, on its tensors: execute() of a
/// plan that exists, and, with options.needs_grad, execute_backward(). Backends take turns, so that
/// a change of the machine's speed changes all of them. Tensors lie on the CPU; outputs are
/// written.
REGARD_EXPORT Expected<Benchmark> benchmark(Context& context, const AttentionGradRequest& request,
                                            const Policy& policy = {},
                                            const BenchmarkOptions& options = {});

// The two steps of benchmark(), for calls of another kind, such as those of another library.

/// The machine's rates and a row for each backend and direction, without times yet.
REGARD_EXPORT Expected<Benchmark> plan_benchmark(Context& context,
                                                 const AttentionGradRequest& request,
                                                 const Policy& policy = {});

/// Measures each row whose reason is empty. `calls` has one function for each row, empty for rows
/// with a reason. A call that fails makes its message the row's reason; kInterrupted ends
/// measuring. A pause before each turn lets the threads of the previous one stop spinning.
REGARD_EXPORT void measure(Benchmark* result, std::span<const std::function<Status()>> calls,
                           const BenchmarkOptions& options = {});

REGARD_EXPORT std::string to_string(const Benchmark& result);
REGARD_EXPORT std::string to_json(const Benchmark& result);

}  // namespace regard

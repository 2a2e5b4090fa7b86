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

/// One backend, or something that it is compared with, in one direction.
struct BenchmarkRow {
  std::string name;  // "flash"; of what is no backend of regard, its own
  bool backward = false;
  std::string reason;                 // why it was not measured; empty where it was
  std::string kernel;                 // of the plan; "" where it is unknown
  std::int32_t workers = 0;           // of the plan; 0: unknown
  std::int64_t workspace_bytes = -1;  // of the plan; -1: unknown
  Work work;
  std::vector<double> seconds;  // of one call, for each timed run

  /// The value that a share of the runs does not exceed: 0 the fastest, 0.5 the median, 1 the
  /// slowest; between two runs in proportion. 0 without runs.
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
  std::int32_t rounds = 0;         // in each, every row had its turn
  bool interrupted = false;        // and the rounds are those before
  std::vector<std::string> notes;
};

struct BenchmarkOptions {
  double seconds = 1.0;            // rounds go on until then, and until there are three
  std::int32_t rounds = 0;         // so many instead; 0: by `seconds`
  Interrupt::Poll poll = nullptr;  // ends measuring, also within a call, with what there is
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

/// The machine's rates and a row for each backend and direction, with reasons and without times.
REGARD_EXPORT Expected<Benchmark> plan_benchmark(Context& context,
                                                 const AttentionGradRequest& request,
                                                 const Policy& policy = {});

/// Gives each row whose reason is empty its runs: `calls` has one for each row, and is empty for
/// those that have a reason. A call that fails leaves its message as the reason; kInterrupted ends
/// measuring. Before each turn the threads of the one before, which may spin, are waited for.
REGARD_EXPORT void measure(Benchmark* result, std::span<const std::function<Status()>> calls,
                           const BenchmarkOptions& options = {});

REGARD_EXPORT std::string to_string(const Benchmark& result);
REGARD_EXPORT std::string to_json(const Benchmark& result);

}  // namespace regard

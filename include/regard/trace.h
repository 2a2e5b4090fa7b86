#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "regard/export.h"
#include "regard/machine_rates.h"
#include "regard/params.h"
#include "regard/plan.h"
#include "regard/selection.h"
#include "regard/status.h"
#include "regard/work.h"

// What ran, and why: of one call by Launch::planned, of every call of a Context by
// Context::set_trace.

namespace regard {

enum class Direction : std::uint8_t { kForward = 0, kBackward };

REGARD_EXPORT const char* to_string(Direction direction) noexcept;  // "forward", "backward"

/// What a call was, and the plan that it ran with.
struct PlannedCall {
  std::optional<AttentionParams> params;  // of the call itself; unset: its tensors were refused
  Plan plan;                              // empty: the call failed before it was planned

  /// The decision with every reason, computed again from the plan's own inputs for `params`. Needs
  /// a plan and params.
  REGARD_EXPORT Selection selection() const;
};

/// One call of attention, attention_backward, execute or execute_backward, once it has ended.
struct CallTrace : PlannedCall {
  Direction direction = Direction::kForward;
  /// The whole call: checks, the plan if it is not cached, and the computation. On a CUDA device
  /// the call ends once its work is launched.
  std::int64_t ns = 0;
  Work work;  // of the call's own lengths and windows; 0 of a call that failed
  /// What the plan's cost model predicts for the call (regard/cost.h).
  PredictedTime predicted;
  /// Why a call failed; with the Selection where no backend could run.
  Status status;

  /// Kernel, instruction set, workers and workspace of the call's direction; null without a plan.
  REGARD_EXPORT const KernelPlan* kernel() const noexcept;
};

/// The rates of a call as shares of the machine's. 0: the call failed, its tensors lie on another
/// device, or the machine's rate was not measured.
struct Shares {
  double of_peak = 0.0;       // operations a second over peak_gflops()
  double of_bandwidth = 0.0;  // bytes a second over read_gbps; above 1 where caches deliver them
};
REGARD_EXPORT Shares shares_of(const CallTrace& call, const MachineRates& rates) noexcept;

/// The calls of one case, backend and direction: predicted and measured.
struct Calibration {
  std::string problem;  // the words of the case
  BackendRef backend;
  Direction direction = Direction::kForward;
  std::int64_t calls = 0;
  double measured_seconds = 0.0;  // the median
  double predicted_seconds = 0.0;
  double spread = 0.0;  // of the prediction
  double ratio = 0.0;   // measured over predicted
};

/// Where the cost model is off: cases whose ratio is above `limit` or below its inverse, the
/// farthest first. Calls that failed or have no prediction are left out; limit 1 lists all others.
REGARD_EXPORT std::vector<Calibration> calibration(std::span<const CallTrace> calls,
                                                   double limit = 1.5);

/// {"case": "b1 hq8 ...", "direction": "forward", "backend": "flash", "kernel": ..., "ns": ...}
REGARD_EXPORT std::string to_json(const CallTrace& call);

/// Receives each call on the thread that made it, perhaps on several threads at once. `call` is
/// valid until the function returns; a copy may be kept. It must not call into regard. Exceptions
/// are dropped, with a warning in the log.
using TraceFunction = void (*)(void* user, const CallTrace& call);

}  // namespace regard

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/compare.h"
#include "conformance/compare_gradients.h"
#include "conformance/memory.h"
#include "conformance/problem.h"
#include "oracle/oracle.h"
#include "regard/case.h"
#include "regard/context.h"

// One case on one backend: what it claims must run and be right, what it refuses must state how it
// would not.

namespace regard::conformance {

/// Brings a call's tensors to a device and what it wrote back: in a program that has one, as this
/// library knows none. `memory` is everything that the request and the workspace lie in.
class DeviceRunner {
 public:
  virtual ~DeviceRunner() = default;
  struct Call {
    const Plan& plan;
    const AttentionGradRequest& request;
    Workspace workspace;
    std::vector<MemoryRange> memory;
    bool backward;
  };
  /// execute() or execute_backward() with the tensors at their places on the device.
  virtual Status run(const Call& call) = 0;
};

struct RunOptions {
  Guard guard = Guard::kCanaries;         // round tensors and workspace
  bool twice = true;                      // run again on another workspace pattern: the same bits
  bool check_fixes = true;                // where the backend refuses
  DeviceRunner* device_runner = nullptr;  // null: the case's device is the CPU
};

enum class Outcome : std::uint8_t { kPassed = 0, kRefused, kFailed };

struct Report {
  Outcome outcome = Outcome::kPassed;
  std::string text;  // of a failure: what is wrong, and the line that repeats it
  Comparison comparison;
  GradComparison gradients;  // of a case with `grad`
  std::string kernel;
  Isa isa = Isa::kScalar;
  Isa backward_isa = Isa::kScalar;  // of a case with `grad`
  std::int64_t workspace_bytes = 0;

  bool ok() const noexcept { return outcome != Outcome::kFailed; }
};

/// A case with its tensors and its truth, to be run on any number of backends.
struct PreparedCase {
  Case source;
  AttentionParams params;  // what describe() made of the tensors
  Problem problem;
  oracle::Truth truth;
  oracle::GradTruth gradients;  // of a case with `grad`
};

/// An error where describe() refuses the tensors or sees another problem than the case states.
Expected<PreparedCase> prepare(const Case& c, Guard guard = Guard::kCanaries,
                               oracle::Fault fault = oracle::Fault::kNone);

/// What a backend answers when it is the only one allowed. assume_finite follows the case's poison.
Policy policy_for(const Case& c, const BackendRef& backend);

/// Plans and executes with exactly the workspace stated, computes gradients where the case has
/// `grad`, then compares; or checks the refusals.
Report run_prepared(Context& context, PreparedCase* prepared, const BackendRef& backend,
                    const RunOptions& options = {});

/// prepare() and run_prepared(). `context` must have the case's environment.
Report run_case(Context& context, const Case& c, const BackendRef& backend,
                const RunOptions& options = {});

/// What a backend's record states that a planned kernel rounds probabilities to. `direction`:
/// &BackendInfo::forward or &BackendInfo::backward.
Dtype claimed_probs(const Context& context, const BackendRef& backend,
                    const AttentionParams& params, const KernelPlan& kernel,
                    Claims BackendInfo::*direction);

/// Every refusal of `verdict` must be terminal or carry a fix that removes it. Empty when so.
std::string check_fixes(Context& context, const AttentionParams& params, const Policy& policy,
                        const Verdict& verdict);

/// "regard check '<case>' --backend <backend>".
std::string repro_line(const Case& c, const BackendRef& backend);

}  // namespace regard::conformance

#pragma once

#include <cstdint>
#include <string>

#include "regard/params.h"
#include "regard/policy.h"

// Calls that check themselves: with Policy::self_check = N one forward in N on a CPU recomputes a
// few of its rows on MATH, and compares them with the error bound of the backend that ran
// (docs/self_check.md). Which call of each N, and which rows, follows from a fixed seed and the
// number of calls.

namespace regard {

/// What the self-checks of a Context have found.
struct SelfCheckCounters {
  std::uint64_t calls = 0;        // forwards whose policy has self_check
  std::uint64_t checked = 0;      // of which rows were recomputed
  std::uint64_t rows = 0;         // that were compared
  std::uint64_t not_checked = 0;  // whose turn it was, but which cannot be checked
  std::uint64_t violations = 0;   // checks that found a row beyond its tolerance
  std::uint64_t denied = 0;       // backends that may not run any more
  double max_share = 0.0;         // the largest error over its tolerance
  friend bool operator==(const SelfCheckCounters&, const SelfCheckCounters&) = default;
};

/// A row beyond its tolerance.
struct SelfCheckViolation {
  AttentionParams params;  // of the call
  BackendRef backend;
  std::string kernel;
  std::string output;  // "out", "lse" or "saved_stats"
  std::int64_t batch = 0, head = 0, row = 0;
  double error = 0.0;  // |backend - MATH| of the worst element; NaN where one is not finite
  double tolerance = 0.0;
  bool denied = false;      // the backend may not run from here on
  std::string file;         // the tensors of the call; "" where none was written
  std::string not_written;  // why; "" where one was
  std::string command;      // that reproduces it from the file

  /// One sentence: case, backend, error, tolerance and what reproduces it.
  REGARD_EXPORT std::string to_string() const;
};

/// Why no call of the problem can be checked; "" where they can: "tensors lie on a CUDA device".
REGARD_EXPORT std::string self_check_refusal(const AttentionParams& params);

}  // namespace regard

#pragma once

#include <string>
#include <unordered_map>

#include "regard/frozen.h"

namespace regard {

struct PlanImpl;

/// The decisions that a Context's plans are compared with.
struct Replay {
  std::string source;
  std::string policy;                                         // under which they were made
  std::unordered_map<std::string, FrozenDecision> decisions;  // by words

  /// Where the plan's case is among them and its policy is theirs: an error with what differs.
  Status check(const PlanImpl& plan) const;
};

/// Reads a file of frozen decisions of at most 64 MiB.
Expected<FrozenDecisions> read_frozen(const std::string& path);

}  // namespace regard

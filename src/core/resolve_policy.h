#pragma once

#include <memory>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/policy.h"

namespace regard {

/// The policy that holds for one call, and where its parts came from.
struct ResolvedPolicy {
  Policy policy;
  std::size_t hash = 0;     // of policy
  std::string only_source;  // "call policy", "scope", "context policy", "REGARD_BACKEND"; "" unset
  std::string prefer_source;
  std::vector<std::string> warnings;  // sources overruled by higher ones
  std::string conflict;  // sources that leave nothing, both named; nothing can be chosen then
  Status status;         // not ok: a source is no valid policy, and nothing may be asked
};

/// What REGARD_BACKEND and REGARD_DENY say (an only whose order is prefer; a deny).
Policy environment_policy(const Env& env);

/// Merges call > this thread's scopes > context > environment. Reads the scope stack, once.
std::shared_ptr<const ResolvedPolicy> resolve_policy(const Policy& call, const Policy& context,
                                                     const Policy& environment);

}  // namespace regard

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/policy.h"

namespace regard {

/// Where a part of a policy comes from, the highest first.
enum class PolicySource : std::uint8_t { kForward, kCall, kScope, kContext, kEnvironment };
const char* to_string(PolicySource source) noexcept;  // "forward", ..., "REGARD_BACKEND"

/// One backend of the preferred order.
struct Preference {
  BackendRef ref;
  PolicySource source;
  friend bool operator==(const Preference&, const Preference&) = default;
};

/// The policy that holds for one call, and where its parts came from.
struct ResolvedPolicy {
  Policy policy;         // prefer: the backends of `preferred`
  std::size_t hash = 0;  // of policy
  std::optional<PolicySource> only_source;
  // What all sources prefer, those of higher sources first, without what an `only` of a higher
  // source excludes.
  std::vector<Preference> preferred;
  std::vector<std::string> warnings;  // sources overruled by higher ones
  std::string conflict;  // sources that leave nothing, both named; nothing can be chosen then
  Status status;         // not ok: a source is no valid policy, and nothing may be selected
  bool is_of_backward = false;  // the forward has run: limits hold for the backward alone
};

/// The values of REGARD_BACKEND and REGARD_DENY (an only whose order is prefer; a deny).
Policy environment_policy(const Env& env);

/// Merges call > this thread's scopes > context > environment. Reads the scope stack, once.
std::shared_ptr<const ResolvedPolicy> resolve_policy(const Policy& call, const Policy& context,
                                                     const Policy& environment);

/// The policy of a backward on the backend of its forward, which was planned under `forward`: what
/// `call` restricts is added to it. There is nothing to prefer.
std::shared_ptr<const ResolvedPolicy> restrict_to_forward(const ResolvedPolicy& forward,
                                                          const BackendRef& backend,
                                                          const Policy& call);

}  // namespace regard

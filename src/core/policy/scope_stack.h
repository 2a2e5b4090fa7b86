#pragma once

#include <memory>

#include "regard/policy.h"

namespace regard {

/// One open scope; outer scopes hang behind it. Immutable, so that a captured stack can be shared.
struct ScopedPolicy::Node {
  Policy policy;
  Mode mode;
  std::shared_ptr<const Node> outer;
};

/// The scopes of the calling thread, innermost first; null when none is open.
struct ScopeStack {
  using Node = ScopedPolicy::Node;
  static const std::shared_ptr<const Node>& top() noexcept;
};

}  // namespace regard

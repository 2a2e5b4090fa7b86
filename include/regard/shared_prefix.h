#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "regard/context.h"

// Plans of attention_shared_prefix() (regard/context.h).

namespace regard {

struct SharedPrefixImpl;

/// The two calls of attention_shared_prefix(), planned once: immutable, cheap to copy, shareable
/// between threads. It accepts calls of the same prefix whose other extents are at most its own.
class REGARD_EXPORT SharedPrefixPlan {
 public:
  SharedPrefixPlan();  // empty; only plan_shared_prefix() makes one that can be used

  bool empty() const noexcept { return impl_ == nullptr; }
  /// Of all queries over the shared keys; empty for a prefix of 0 keys.
  const Plan& prefix() const noexcept;
  /// Of each sequence over its own keys.
  const Plan& own() const noexcept;
  std::int64_t shared_prefix_kv() const noexcept;
  /// For execute_shared_prefix(): the partial results of both calls, and what either plan needs.
  std::int64_t workspace_bytes() const noexcept;
  std::string to_string() const;

 private:
  friend struct SharedPrefixImpl;
  explicit SharedPrefixPlan(std::shared_ptr<const SharedPrefixImpl> impl) noexcept;
  std::shared_ptr<const SharedPrefixImpl> impl_;
};

/// Plans attention_shared_prefix() once for many calls, whose prefix has that length: `params` are
/// those that describe() makes of the largest request. Fails as attention_shared_prefix() does,
/// without data. 0 keys: plan() itself.
REGARD_EXPORT Expected<SharedPrefixPlan> plan_shared_prefix(Context& context,
                                                            const AttentionParams& params,
                                                            std::int64_t shared_prefix_kv,
                                                            const Policy& policy = {});

/// attention_shared_prefix() of a plan, with the bits of that call where the plan was made for its
/// extents. Checks as it does, and that the buffers fit the plan, before anything is written.
/// Decides nothing, allocates nothing and reads no environment: launch.workspace must have
/// plan.workspace_bytes(). launch.planned receives the call over own keys.
REGARD_EXPORT Status execute_shared_prefix(const SharedPrefixPlan& plan, const Buffers& buffers,
                                           const Launch& launch = {});

}  // namespace regard

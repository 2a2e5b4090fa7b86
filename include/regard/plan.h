#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "regard/export.h"
#include "regard/status.h"

namespace regard {

struct AttentionParams;
struct BackendRef;
struct KernelPlan;
struct PlanImpl;
struct Policy;
struct Selection;

/// What will run and how: immutable, cheap to copy, shareable between threads. It accepts calls
/// whose extents are at most its own (exactly its own for a backend that needs exact extents). A
/// plan made with `needs_grad` holds a forward and its backward, both of the same backend.
class REGARD_EXPORT Plan {
 public:
  Plan();  // empty; only plan() makes one that can be used
  ~Plan();
  Plan(const Plan&);
  Plan(Plan&&) noexcept;
  Plan& operator=(const Plan&);
  Plan& operator=(Plan&&) noexcept;

  bool empty() const noexcept { return impl_ == nullptr; }
  const BackendRef& backend() const noexcept;
  /// Its extents are the largest that the plan accepts.
  const AttentionParams& params() const noexcept;
  const KernelPlan& kernel() const noexcept;
  std::int64_t workspace_bytes() const noexcept;
  /// For execute_backward; empty and 0 without `needs_grad`.
  const KernelPlan& backward_kernel() const noexcept;
  std::int64_t backward_workspace_bytes() const noexcept;
  /// What a self-check of a call needs besides, which the Context holds from plan() on: some rows
  /// of MATH. 0 where the policy has no self_check, or self_check_refusal() says why none can be.
  std::int64_t self_check_bytes() const noexcept;
  const Policy& policy() const noexcept;  // merged from all sources
  /// The decision with every reason, computed again from the plan's own inputs.
  Selection selection() const;
  /// Other ways to run this forward, with the same bits (Backend::variants).
  std::vector<std::string> variants() const;
  /// This plan with one of them, or with "" for the backend's default, in place of what the tuning
  /// table names. An error where the backend has no such variant for the plan.
  Expected<Plan> with_variant(std::string_view variant) const;
  std::string to_string() const;

 private:
  friend struct PlanImpl;
  explicit Plan(std::shared_ptr<const PlanImpl> impl) noexcept;
  std::shared_ptr<const PlanImpl> impl_;
};

}  // namespace regard

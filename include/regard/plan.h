#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "regard/export.h"

namespace regard {

struct AttentionParams;
struct BackendRef;
struct KernelPlan;
struct PlanImpl;
struct Policy;
struct Selection;

/// What will run and how: immutable, cheap to copy, shareable between threads. It accepts any
/// extents up to its own; of a backend that needs exact extents, its own alone. One made with
/// `needs_grad` holds the pair: the forward and its backward, of the same backend.
class REGARD_EXPORT Plan {
 public:
  Plan();  // empty; every accessor needs a plan that plan() returned
  ~Plan();
  Plan(const Plan&);
  Plan(Plan&&) noexcept;
  Plan& operator=(const Plan&);
  Plan& operator=(Plan&&) noexcept;

  bool empty() const noexcept { return impl_ == nullptr; }
  const BackendRef& backend() const noexcept;
  /// Extents are the most that it accepts: rounded up, or exact where the backend needs that.
  const AttentionParams& params() const noexcept;
  const KernelPlan& kernel() const noexcept;
  std::int64_t workspace_bytes() const noexcept;
  /// Of execute_backward; without `needs_grad` there is none: no name, 0 bytes.
  const KernelPlan& backward_kernel() const noexcept;
  std::int64_t backward_workspace_bytes() const noexcept;
  const Policy& policy() const noexcept;  // all of what it was made under, merged
  /// The decision with every reason, made again from the plan's own inputs (it is pure).
  Selection selection() const;
  std::string to_string() const;

 private:
  friend struct PlanImpl;
  explicit Plan(std::shared_ptr<const PlanImpl> impl) noexcept;
  std::shared_ptr<const PlanImpl> impl_;
};

}  // namespace regard

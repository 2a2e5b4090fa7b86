#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/plan/row_reference.h"
#include "core/plan/workspace_pool.h"
#include "core/select/learned.h"
#include "regard/self_check.h"

namespace regard {

/// What the self-checks of a Context share: whose turn it is, one workspace, what they found, and
/// which backends they denied. Plans hold it, for one may be executed after its Context has ended.
/// Safe to use from many threads; one check runs at a time.
class SelfChecks {
 public:
  static constexpr std::size_t kMaxViolations = 16;  // that are kept, and have files

  /// `reference` may be null: nothing is checked.
  explicit SelfChecks(const RowReference* reference) : reference_(reference) {}

  const RowReference* reference() const noexcept { return reference_; }
  /// Counts a call whose policy checks one in `every`. True: a check is due, of this call or of one
  /// before it that another check kept from its turn. One call of each `every` is, at a place that
  /// a hash of the number of calls gives.
  bool count_call(std::int64_t every) noexcept;

  /// Makes the workspace hold at least `bytes`.
  Status reserve(std::int64_t bytes);
  /// Frees the workspace, unless a check runs.
  void trim() noexcept;
  std::int64_t total_bytes() const { return workspaces_.total_bytes(); }

  /// A check that is due and has the workspace; none where another one runs.
  class Turn {
   public:
    Turn(SelfChecks& checks, std::int64_t bytes);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool taken() const noexcept { return lock_.owns_lock() && workspace_.data != nullptr; }
    const Workspace& workspace() const noexcept { return workspace_; }
    /// Checks so far, from which rows are drawn.
    std::uint64_t index() const noexcept { return index_; }

   private:
    SelfChecks& checks_;
    std::unique_lock<std::mutex> lock_;
    Workspace workspace_;
    std::uint64_t index_ = 0;
  };

  void count_checked(std::int64_t rows, double max_share);
  /// A due call that cannot be checked; true where no call before it had the same reason.
  bool count_not_checked(const std::string& reason);
  /// The number of violations before it.
  std::uint64_t add(const SelfCheckViolation& violation);
  /// From here on the backend may not run; true where it might before.
  bool deny(const BackendRef& backend, std::string text);

  /// Part of the plan cache's key.
  std::uint64_t denials() const noexcept { return denials_.load(std::memory_order_acquire); }
  std::vector<DeniedBackend> denied() const;
  /// Why the backend may not run; "" where it may.
  std::string denial_of(const BackendRef& backend) const;
  SelfCheckCounters counters() const;
  std::vector<SelfCheckViolation> violations() const;

 private:
  const RowReference* reference_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<bool> due_{false};
  std::atomic<std::uint64_t> denials_{0};
  std::mutex turn_;  // of the check that runs
  std::uint64_t turns_ = 0;
  WorkspacePool workspaces_;
  mutable std::mutex mutex_;  // of what follows
  SelfCheckCounters counters_;
  std::vector<DeniedBackend> denied_;
  std::vector<SelfCheckViolation> violations_;
  std::set<std::string> reasons_;
};

}  // namespace regard

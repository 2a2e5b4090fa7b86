#include "core/plan/self_checks.h"

#include <algorithm>

#include "base/hash.h"

namespace regard {

bool SelfChecks::count_call(std::int64_t every) noexcept {
  const auto n = static_cast<std::uint64_t>(every);
  const std::uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed);
  Hasher hasher;
  hasher.add(n);
  hasher.add(call / n);
  if (hasher.value() % n == call % n) due_.store(true, std::memory_order_relaxed);
  return due_.load(std::memory_order_relaxed);
}

Status SelfChecks::reserve(std::int64_t bytes) {
  if (bytes <= 0 || workspaces_.total_bytes() >= bytes) return {};
  const std::lock_guard lock(turn_);
  if (workspaces_.total_bytes() >= bytes) return {};
  const Expected<Workspace> block = workspaces_.lease(static_cast<std::size_t>(bytes));
  if (!block) {
    return Status(StatusCode::kWorkspace, "[plan] cannot allocate the " + std::to_string(bytes) +
                                              " bytes of a self-check; leave out self_check");
  }
  workspaces_.give_back(*block);
  return {};
}

void SelfChecks::trim() noexcept {
  const std::unique_lock lock(turn_, std::try_to_lock);
  if (lock.owns_lock()) workspaces_.trim();
}

SelfChecks::Turn::Turn(SelfChecks& checks, std::int64_t bytes)
    : checks_(checks), lock_(checks.turn_, std::try_to_lock) {
  // Another thread may have had the turn since it was due.
  if (!lock_.owns_lock() || !checks.due_.exchange(false, std::memory_order_relaxed)) return;
  const Expected<Workspace> block = checks.workspaces_.lease(static_cast<std::size_t>(bytes));
  if (!block) return;
  workspace_ = *block;
  index_ = checks.turns_++;
}

SelfChecks::Turn::~Turn() {
  if (workspace_.data != nullptr) checks_.workspaces_.give_back(workspace_);
}

void SelfChecks::count_checked(std::int64_t rows, double max_share) {
  const std::lock_guard lock(mutex_);
  ++counters_.checked;
  counters_.rows += static_cast<std::uint64_t>(rows);
  counters_.max_share = std::max(counters_.max_share, max_share);
}

bool SelfChecks::count_not_checked(const std::string& reason) {
  due_.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  ++counters_.not_checked;
  return reasons_.insert(reason).second;
}

std::uint64_t SelfChecks::add(const SelfCheckViolation& violation) {
  const std::lock_guard lock(mutex_);
  if (violations_.size() < kMaxViolations) violations_.push_back(violation);
  return counters_.violations++;
}

bool SelfChecks::deny(const BackendRef& backend, std::string text) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const DeniedBackend& denied) { return denied.ref == backend; };
  if (std::ranges::any_of(denied_, same)) return false;
  denied_.push_back({backend, std::move(text)});
  denials_.store(denied_.size(), std::memory_order_release);
  return true;
}

std::vector<DeniedBackend> SelfChecks::denied() const {
  if (denials() == 0) return {};
  const std::lock_guard lock(mutex_);
  return denied_;
}

std::string SelfChecks::denial_of(const BackendRef& backend) const {
  for (const DeniedBackend& denied : this->denied()) {
    if (denied.ref == backend) return denied.text;
  }
  return "";
}

SelfCheckCounters SelfChecks::counters() const {
  const std::lock_guard lock(mutex_);
  SelfCheckCounters counters = counters_;
  counters.calls = calls_.load(std::memory_order_relaxed);
  counters.denied = denied_.size();
  return counters;
}

std::vector<SelfCheckViolation> SelfChecks::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

}  // namespace regard

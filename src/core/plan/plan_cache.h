#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/policy/resolve_policy.h"
#include "regard/context.h"

namespace regard {

/// What besides key and policy may change a decision or a plan of one Context; each change is one
/// miss. What is learned is no part of it: a refusal concerns one key, whose plans leave the cache.
struct Generations {
  std::uint64_t registry = 0, tuning = 0;
  std::uint64_t replay = 0;
  std::uint64_t denials = 0;  // by self-checks
  std::int32_t concurrency = 0;
  friend bool operator==(const Generations&, const Generations&) = default;
};

/// Everything that select reads (one Context decides a device's problems from one env).
struct PlanCacheKey {
  AttentionKey key;
  std::shared_ptr<const ResolvedPolicy> policy;
  Generations generations;

  friend bool operator==(const PlanCacheKey& a, const PlanCacheKey& b) noexcept {
    return a.generations == b.generations && a.key == b.key && same_policy(*a.policy, *b.policy);
  }

 private:
  // Sources and warnings are part of the Selection that a plan shows, so they count too.
  static bool same_policy(const ResolvedPolicy& a, const ResolvedPolicy& b) noexcept {
    return &a == &b ||
           (a.hash == b.hash && a.policy == b.policy && a.only_source == b.only_source &&
            a.is_of_backward == b.is_of_backward && a.preferred == b.preferred &&
            a.warnings == b.warnings && a.conflict == b.conflict);
  }
};

/// Least-recently-used plans. Safe to use from many threads.
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}
  /// Empty where there is none; a plan counts as a hit.
  Plan find(const PlanCacheKey& key);
  void insert(const PlanCacheKey& key, const Plan& plan);
  /// Drops the plans of a backend for a key, whatever their policies.
  void erase(const BackendRef& backend, const AttentionKey& key);
  void count_miss();
  void count_selection();
  PlanCacheCounters counters() const;

 private:
  struct Hash {
    std::size_t operator()(const PlanCacheKey& key) const noexcept;
  };
  using Entry = std::pair<PlanCacheKey, Plan>;
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::list<Entry> recent_;  // most recent first
  std::unordered_map<PlanCacheKey, std::list<Entry>::iterator, Hash> index_;
  PlanCacheCounters counters_{};
};

}  // namespace regard

#include "core/plan/plan_cache.h"

#include "base/hash.h"

namespace regard {

std::size_t PlanCache::Hash::operator()(const PlanCacheKey& key) const noexcept {
  Hasher hasher;
  hasher.add(key.key.hash());
  hasher.add(key.policy->hash);
  hasher.add(key.generations.registry);
  hasher.add(key.generations.tuning);
  hasher.add(key.generations.replay);
  hasher.add(key.generations.denials);
  hasher.add(static_cast<std::uint64_t>(key.generations.concurrency));
  return hasher.value();
}

Plan PlanCache::find(const PlanCacheKey& key) {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return {};
  ++counters_.hits;
  recent_.splice(recent_.begin(), recent_, it->second);
  return it->second->second;
}

void PlanCache::insert(const PlanCacheKey& key, const Plan& plan) {
  const std::lock_guard lock(mutex_);
  if (capacity_ == 0 || index_.contains(key)) return;  // another thread planned it meanwhile
  // First what allocates: a failure leaves the list and its index as they were.
  std::list<Entry> added;
  added.emplace_front(key, plan);
  index_.emplace(key, added.begin());
  while (recent_.size() >= capacity_) {
    index_.erase(recent_.back().first);
    recent_.pop_back();
    ++counters_.evictions;
  }
  recent_.splice(recent_.begin(), added);
}

void PlanCache::erase(const BackendRef& backend, const AttentionKey& key) {
  const std::lock_guard lock(mutex_);
  for (auto it = recent_.begin(); it != recent_.end();) {
    const auto& [cache_key, plan] = *it;
    if (plan.backend() != backend || !(cache_key.key == key)) {
      ++it;
      continue;
    }
    index_.erase(cache_key);
    it = recent_.erase(it);
  }
}

void PlanCache::count_miss() {
  const std::lock_guard lock(mutex_);
  ++counters_.misses;
}

void PlanCache::count_selection() {
  const std::lock_guard lock(mutex_);
  ++counters_.selections;
}

PlanCacheCounters PlanCache::counters() const {
  const std::lock_guard lock(mutex_);
  PlanCacheCounters counters = counters_;
  counters.size = recent_.size();
  counters.capacity = capacity_;
  return counters;
}

}  // namespace regard

#include "core/select/learned.h"

#include <algorithm>
#include <utility>

namespace regard {

void LearnedRefusals::add(const LearnedRefusal& refusal) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const LearnedRefusal& other) {
    return other.ref == refusal.ref && other.level == refusal.level && other.key == refusal.key;
  };
  recent_.reserve(kCapacity);
  LearnedRefusal added = refusal;
  std::erase_if(recent_, same);  // two threads may learn the same
  if (recent_.size() == kCapacity) recent_.erase(recent_.begin());
  recent_.push_back(std::move(added));
  ++added_;
}

std::vector<LearnedRefusal> LearnedRefusals::find(const AttentionKey& rounded,
                                                  const AttentionKey& exact) {
  const std::lock_guard lock(mutex_);
  const auto others =
      std::stable_partition(recent_.begin(), recent_.end(), [&](const LearnedRefusal& refusal) {
        return !(refusal.key == rounded) && !(refusal.key == exact);
      });
  return {others, recent_.end()};
}

std::size_t LearnedRefusals::size() const {
  const std::lock_guard lock(mutex_);
  return recent_.size();
}

std::uint64_t LearnedRefusals::added() const {
  const std::lock_guard lock(mutex_);
  return added_;
}

}  // namespace regard

#include "backends/cudnn/plan_state.h"

#include <algorithm>

namespace regard::cudnn {

bool operator==(const Strides& a, const Strides& b) noexcept {
  const auto same = [](const auto& x, const auto& y) {
    return std::equal(std::begin(x), std::end(x), std::begin(y));
  };
  return same(a.q, b.q) && same(a.k, b.k) && same(a.v, b.v) && same(a.out, b.out) &&
         same(a.stats, b.stats) && same(a.d_out, b.d_out) && same(a.d_q, b.d_q) &&
         same(a.d_k, b.d_k) && same(a.d_v, b.d_v);
}

std::shared_ptr<const Graph> PlanState::find(const Strides& strides) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [made_for, graph] : graphs_) {
    if (made_for == strides) return graph;
  }
  return nullptr;
}

Status PlanState::prepare(const AttentionParams& params, const Strides& strides) const {
  if (find(strides) != nullptr) return {};
  // Without the lock, which execute takes: two threads may build the same, and one is kept.
  Expected<std::shared_ptr<const Graph>> made = build_(params, node_, strides, engine_bytes_);
  if (!made) return made.status();
  if (find(strides) != nullptr) return {};
  const std::lock_guard lock(mutex_);
  if (graphs_.size() == kMaxGraphs) graphs_.erase(graphs_.begin());
  graphs_.emplace_back(strides, *std::move(made));
  return {};
}

}  // namespace regard::cudnn

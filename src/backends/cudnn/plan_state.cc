#include "backends/cudnn/plan_state.h"

#include <algorithm>

namespace regard::cudnn {

bool operator==(const GraphKey& a, const GraphKey& b) noexcept {
  const auto same = [](const auto& x, const auto& y) {
    return std::equal(std::begin(x), std::end(x), std::begin(y));
  };
  const Strides& s = a.strides;
  const Strides& t = b.strides;
  return a.extents == b.extents && same(s.q, t.q) && same(s.k, t.k) && same(s.v, t.v) &&
         same(s.out, t.out) && same(s.stats, t.stats) && same(s.d_out, t.d_out) &&
         same(s.d_q, t.d_q) && same(s.d_k, t.d_k) && same(s.d_v, t.d_v);
}

Expected<std::shared_ptr<const Graph>> PlanState::graph(const AttentionParams& params,
                                                        const Strides& strides) const {
  const GraphKey key{{params.batch, params.seqlen_q, params.seqlen_kv}, strides};
  // Held while a graph is built: a second caller of the same sizes waits for it.
  const std::lock_guard lock(mutex_);
  for (const auto& [made_for, graph] : graphs_) {
    if (made_for == key) return graph;
  }
  Expected<std::shared_ptr<const Graph>> made = build_graph(params, node_, strides, engine_bytes_);
  if (!made) return made;
  if (graphs_.size() == kMostGraphs) graphs_.erase(graphs_.begin());
  graphs_.emplace_back(key, *made);
  return made;
}

}  // namespace regard::cudnn

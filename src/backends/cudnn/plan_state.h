#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cudnn/graph.h"

namespace regard::cudnn {

/// What one graph serves: cuDNN takes neither larger nor smaller extents, nor other strides.
struct GraphKey {
  std::array<std::int64_t, 3> extents{};  // batch, seqlen_q, seqlen_kv
  Strides strides{};
};
bool operator==(const GraphKey& a, const GraphKey& b) noexcept;

/// The graphs of a plan, each built at the first call of its exact sizes.
class PlanState {
 public:
  PlanState(Node node, std::int64_t engine_bytes) : node_(node), engine_bytes_(engine_bytes) {}

  Expected<std::shared_ptr<const Graph>> graph(const AttentionParams& params,
                                               const Strides& strides) const;
  /// What of the workspace is cuDNN's own.
  std::int64_t engine_bytes() const noexcept { return engine_bytes_; }

 private:
  static constexpr std::size_t kMostGraphs = 64;  // one takes some hundred kB of the host's memory

  const Node node_;
  const std::int64_t engine_bytes_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<GraphKey, std::shared_ptr<const Graph>>> graphs_;  // oldest first
};

}  // namespace regard::cudnn

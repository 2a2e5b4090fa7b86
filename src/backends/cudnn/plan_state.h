#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cudnn/graph.h"

namespace regard::cudnn {

bool operator==(const Strides& a, const Strides& b) noexcept;

/// The graphs of a plan, one for each of the strides that its calls have: cuDNN takes neither other
/// extents nor other strides. That of dense tensors is built with the plan, others by prepare().
class PlanState {
 public:
  using Build = Expected<std::shared_ptr<const Graph>> (*)(const AttentionParams&, Node,
                                                           const Strides&, std::int64_t);
  /// `build` is build_graph but in tests.
  PlanState(Node node, std::int64_t engine_bytes, Build build = build_graph)
      : node_(node), engine_bytes_(engine_bytes), build_(build) {}

  /// Builds the graph of such strides unless there is one.
  Status prepare(const AttentionParams& params, const Strides& strides) const;
  /// Null where prepare() built none; never builds.
  std::shared_ptr<const Graph> find(const Strides& strides) const;
  /// What of the workspace is cuDNN's own.
  std::int64_t engine_bytes() const noexcept { return engine_bytes_; }

 private:
  static constexpr std::size_t kMaxGraphs = 64;  // one takes some hundred kB of the host's memory

  const Node node_;
  const std::int64_t engine_bytes_;
  const Build build_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<Strides, std::shared_ptr<const Graph>>> graphs_;  // oldest first
};

}  // namespace regard::cudnn

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard::cudnn {

enum class Direction : std::uint8_t { kForward = 0, kBackward };

/// Where the elements of a call's tensors lie, in elements: what a graph is made for besides
/// params.
struct Strides {
  std::int64_t q[4], k[4], v[4], out[4];
  std::int64_t stats[3];  // of lse: [B,Hq,Sq]
  std::int64_t d_out[4], d_q[4], d_k[4], d_v[4];
};

/// Those of dense tensors in the params' layouts.
Strides dense_strides(const AttentionParams& params) noexcept;

/// What cuDNN's frontend says against the graph on such a device; "" when it validates. Needs the
/// library, no device.
std::string validate_graph(const AttentionParams& params, Direction direction,
                           const Strides& strides, std::int32_t sm_version);

/// The tensors of a run, on the device. `stats` is an input of the backward; null in a forward
/// without lse.
struct Pointers {
  void *q, *k, *v, *out, *stats;
  void *d_out, *d_q, *d_k, *d_v;
};

/// A graph that cuDNN has built for the current device; it may run on several streams at a time.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status run(const Pointers& pointers, void* workspace, void* stream) const = 0;
};

/// StatusCode::kRefusedAtPlan, with cuDNN's own words, when no engine of at most `workspace_bytes`
/// takes it.
Expected<std::shared_ptr<const Graph>> build_graph(const AttentionParams& params,
                                                   Direction direction, const Strides& strides,
                                                   std::int64_t workspace_bytes);

}  // namespace regard::cudnn

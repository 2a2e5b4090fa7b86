#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard::cudnn {

/// cuDNN's nodes of attention.
enum class Node : std::uint8_t { kSdpa = 0, kSdpaBackward, kSdpaF8 };
inline constexpr bool is_forward(Node node) noexcept { return node != Node::kSdpaBackward; }

/// The node that computes a problem's forward.
inline Node forward_node(const AttentionParams& params) noexcept {
  return is_f8(params.dtype_q) ? Node::kSdpaF8 : Node::kSdpa;
}

/// What kSdpaF8 multiplies probabilities by before it rounds them to E4M3: they are at most 1, the
/// largest number is 448, and a power of two keeps 1 exact. The smallest probability that is not
/// rounded to 0 is then 2^-18.
inline constexpr float kProbsScale = 256.0f;

/// Where the elements of a call's tensors lie, in elements: what a graph is made for besides
/// params.
struct Strides {
  std::int64_t q[4], k[4], v[4], out[4];
  std::int64_t stats[3];  // of lse: [B,Hq,Sq]
  std::int64_t d_out[4], d_q[4], d_k[4], d_v[4];
};

/// Those of dense tensors in the params' layouts.
Strides dense_strides(const AttentionParams& params) noexcept;

/// The refusal of cuDNN's frontend for the graph on such a device; "" when it validates. Needs the
/// library, no device.
std::string validate_graph(const AttentionParams& params, Node node, const Strides& strides,
                           std::int32_t sm_version);

/// The tensors of a run, on the device. `stats` is an input of the backward; null in a forward
/// without lse.
struct Pointers {
  void *q, *k, *v, *out, *stats;
  void *d_out, *d_q, *d_k, *d_v;
  void *descale_q, *descale_k, *descale_v;  // null: 1
  void* unwanted;  // kSdpaF8: room of kUnwantedBytes for the largest magnitudes that it reports
};
inline constexpr std::int64_t kUnwantedBytes = 64;

/// A graph that cuDNN has built for the current device; it may run on several streams at a time.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status run(const Pointers& pointers, void* workspace, void* stream) const = 0;
};

/// StatusCode::kRefusedAtPlan, with cuDNN's own words, when no engine of at most `workspace_bytes`
/// takes it; kUnavailable where memory or a handle is lacking now.
Expected<std::shared_ptr<const Graph>> build_graph(const AttentionParams& params, Node node,
                                                   const Strides& strides,
                                                   std::int64_t workspace_bytes);

}  // namespace regard::cudnn

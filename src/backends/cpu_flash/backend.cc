#include "backends/cpu_flash/backend.h"

#include <algorithm>

#include "cpu/tiled_backend.h"
#include "problem/claims.h"

namespace regard::flash {
namespace {

/// Longest rows of q, k and v for which 8 row blocks and two tiles stay within an L2 of 1 MB or so.
constexpr std::int64_t kMaxHeadDim = 576;

/// 96 keys: softmax and carrying the output are then a small part of two products. 128 where rows
/// are short, half as many where a tile would leave the L2.
std::int64_t tile_kv(std::int64_t head_dim_qk, std::int64_t head_dim_v) {
  const std::int64_t head_dim = std::max(head_dim_qk, head_dim_v);
  return head_dim <= 64 ? 128 : head_dim <= 256 ? 96 : 48;
}

BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kFlash;
  info.summary = "tiled online softmax on copied tiles of K and V, the fastest";
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::cpu_forward_claims();
  info.forward.head_dim_qk = {1, kMaxHeadDim, 1};
  info.forward.head_dim_v = {1, kMaxHeadDim, 1};
  info.backward = problem::cpu_backward_claims(info.forward);
  problem::add_bf16_pairs(&info.forward);
  // In the backward gradients of scores are rounded to bf16, too.
  problem::add_bf16_pairs(&info.backward, Dtype::kBf16, 8e-3);
  return info;
}

}  // namespace

const Backend& backend() {
  static const cpu::TiledBackend instance(make_info(), {"flash", 8, true, true, true, tile_kv});
  return instance;
}

}  // namespace regard::flash

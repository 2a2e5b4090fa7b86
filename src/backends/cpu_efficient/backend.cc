#include "backends/cpu_efficient/backend.h"

#include <algorithm>

#include "cpu/split.h"
#include "cpu/tiled_backend.h"
#include "problem/claims.h"

namespace regard::efficient {
namespace {

/// 64 keys of 128 floats are 32 KB, an L1; larger head dims halve it while the converted tiles of
/// 16-bit inputs (8 * tile_kv * head_dim bytes) would pass 256 KB, so that a worker's scratch stays
/// below 1 MB up to a head_dim of 576.
std::int64_t tile_kv(std::int64_t head_dim_qk, std::int64_t head_dim_v) {
  const std::int64_t head_dim = std::max(head_dim_qk, head_dim_v);
  std::int64_t keys = 64;
  while (keys > cpu::kDecodeTileKv &&
         head_dim > 256 * 1024 / (keys * 2 * std::int64_t{sizeof(float)})) {
    keys /= 2;
  }
  return keys;
}

BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kEfficient;
  info.summary =
      "tiled online softmax that reads its inputs in place; extra memory is independent of length";
  info.determinism = Determinism::kBatchInvariant;
  info.forward = problem::cpu_forward_claims();
  info.backward = problem::cpu_backward_claims(info.forward);
  problem::add_bf16_pairs(&info.forward);
  return info;
}

}  // namespace

const Backend& backend() {
  static const cpu::TiledBackend instance(make_info(),
                                          {"efficient", 4, false, false, false, tile_kv});
  return instance;
}

}  // namespace regard::efficient

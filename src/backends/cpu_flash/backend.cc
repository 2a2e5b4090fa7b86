#include "backends/cpu_flash/backend.h"

#include <algorithm>

#include "backends/cpu_flash/kernel.h"
#include "cpu/tiled_backend.h"
#include "problem/claims.h"

namespace regard::flash {
namespace {

constexpr cpu::TiledUnit kUnits[] = {
    {Isa::kScalar, &kScalarKernel, &kScalarKernel},
#if defined(__x86_64__)
    {Isa::kAvx2, &kAvx2Kernel, &kAvx2Kernel},
    {Isa::kAvx512, &kAvx512Kernel, &kAvx512Kernel},
    {Isa::kAvx512Bf16, &kAvx512Bf16FloatKernel, &kAvx512Bf16Kernel},
#endif
};

/// Longest rows of q, k and v for which 8 strips and two tiles stay within an L2 of 1 MB or so.
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
  info.forward = problem::forward_claims();
  info.forward.head_dim_qk = {1, kMaxHeadDim, 1};
  info.forward.head_dim_v = {1, kMaxHeadDim, 1};
  info.backward = problem::backward_claims(info.forward);
  // Where the machine multiplies pairs of bf16, probabilities are rounded to bf16, too, and in the
  // backward so are gradients of scores.
  const auto add_pairs = [](Claims& claims, Dtype out, double error_bound) {
    DtypeClaim pairs{Dtype::kBf16, Dtype::kBf16, out, error_bound};
    pairs.min_isa = Isa::kAvx512Bf16;
    claims.dtypes.push_back(pairs);
  };
  add_pairs(info.forward, Dtype::kBf16, 6e-3);
  add_pairs(info.forward, Dtype::kF32, 4e-3);
  add_pairs(info.backward, Dtype::kBf16, 8e-3);
  return info;
}

}  // namespace

const Backend& backend() {
  static const cpu::TiledBackend instance(make_info(),
                                          {"flash", kUnits, 8, true, true, true, tile_kv});
  return instance;
}

}  // namespace regard::flash

#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cuda_flash/launch.h"
#include "cuda/caches.h"
#include "cuda/delta_bytes.h"
#include "cuda/splits_layout.h"
#include "cuda/tensor_sm.h"
#include "problem/claims.h"
#include "problem/make_problem.h"
#include "regard/backend.h"

namespace regard::cuda_flash {

/// What keys and values may be beside q's type: each is a number of bf16 and of f16.
inline constexpr Dtype kCodeDtypes[] = {Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kI8, Dtype::kU4};

/// How keys and values are stored, for which there are kernels of their own.
enum class KeyCodes : std::uint8_t { kNone, kBytes, kGroups };
inline KeyCodes codes_of(Dtype dtype) {
  if (dtype == Dtype::kU4) return KeyCodes::kGroups;
  const auto* const end = std::end(kCodeDtypes);
  return std::find(std::begin(kCodeDtypes), end, dtype) == end ? KeyCodes::kNone : KeyCodes::kBytes;
}

inline void add_codes(Claims* claims) {
  const std::vector<DtypeClaim> own = claims->dtypes;
  for (DtypeClaim claim : own) {
    for (const Dtype kv : kCodeDtypes) {
      claim.kv = kv;
      claims->dtypes.push_back(claim);
    }
  }
}

inline BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kFlash;
  info.summary =
      "tiled online softmax on tensor cores, bf16 and f16, head_dim up to 256 in multiples of 8";
  info.device = DeviceType::kCuda;
  info.min_sm = cuda::kTensorSm;
  info.determinism = Determinism::kBatchInvariant;
  Claims& forward = info.forward;
  forward = problem::forward_claims();
  forward.dtypes = cuda::tensor_forward_claims();
  add_codes(&forward);
  forward.features = forward.features.without({Feature::kDescales, Feature::kDescalesPerHead})
                         .with(problem::cache_features())
                         .with(problem::quantised_features());
  // Rows are copied in pieces of 16 bytes.
  forward.head_dim_qk = forward.head_dim_v = {8, 256, 8};
  forward.min_align_log2 = 4;
  info.backward = problem::backward_claims(forward);
  // Of gradients of scores, too.
  info.backward.dtypes = cuda::tensor_backward_claims();
  return info;
}

/// Devices whose blocks have 99 KB of shared memory at most, not 163 KB and more.
inline bool has_small_blocks(std::int32_t sm) { return sm == 86 || sm == 89 || sm / 10 == 12; }

/// A way to run the forward by wgmma, on compute capability 9.0 alone.
struct WgmmaVariant {
  const char* name;  // of Backend::variants(); the first is plan()'s
  Schedule schedule;
  std::int64_t max_dims;
};
inline constexpr WgmmaVariant kWgmmaVariants[kSchedules] = {
    {"overlapped", Schedule::kOverlapped, 256},
    {"turns", Schedule::kTurns, 128},
    {"plain", Schedule::kPlain, 256},
    {"wide", Schedule::kWide, 128},
};

/// What wgmma's kernels have of FLASH's features: dense tensors, and scores that are scaled and
/// hidden by arithmetic alone.
inline bool wgmma_has(const AttentionParams& p) {
  constexpr FeatureSet kFeatures = {Feature::kCausal,
                                    Feature::kWindowLeft,
                                    Feature::kWindowRight,
                                    Feature::kDiagonalBottomRight,
                                    Feature::kDiagonalOffset,
                                    Feature::kDiagonalPerSequence,
                                    Feature::kSeqlensQ,
                                    Feature::kSeqlensKv,
                                    Feature::kLse,
                                    Feature::kSavedStats,
                                    Feature::kNeedsGrad,
                                    Feature::kDLse,
                                    Feature::kDelta,
                                    Feature::kGqa,
                                    Feature::kHeadDimsDiffer,
                                    Feature::kSeqlenQGreaterKv,
                                    Feature::kNonFiniteBehindMask};
  const std::int64_t dims = padded_dims(std::max(p.head_dim_qk, p.head_dim_v));
  const bool has_dims = dims == 128 || dims == 256;
  // Coordinates of a copy have 32 bits.
  constexpr std::int64_t kMaxExtent = std::int64_t{1} << 30;
  const bool has_extents =
      std::max({p.seqlen_q, p.seqlen_kv, p.batch, p.num_heads_q}) <= kMaxExtent;
  const bool has_dtypes = p.dtype_k == p.dtype_q && p.dtype_v == p.dtype_q;
  return has_dims && has_extents && has_dtypes && p.features.without(kFeatures).empty();
}

/// FLASH on a CUDA device, or, in tests, on whatever a launcher launches on.
class FlashBackend final : public Backend {
 public:
  FlashBackend(BackendInfo info, const Launcher& launcher)
      : info_(std::move(info)), small_(info_), launcher_(launcher) {
    small_.forward.head_dim_qk.max = small_.forward.head_dim_v.max = 128;
    small_.backward.head_dim_qk.max = small_.backward.head_dim_v.max = 96;
    // 16 bytes that are copied are so many codes.
    codes_ = with_multiples(info_, 16);
    small_codes_ = with_multiples(small_, 16);
    groups_ = with_multiples(info_, 32);
    small_groups_ = with_multiples(small_, 32);
  }

  const BackendInfo& info() const override { return info_; }

  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    const AttentionParams& p = key.params();
    const KeyCodes codes = codes_of(p.dtype_k);
    bool claimed = check_claims(info_for(codes, env), key, env, refusals);
    const auto refuse = [&](const std::string& needs, const std::string& got, const Fix& fix) {
      claimed = false;
      if (refusals != nullptr) refusals->push_back({RefusalCode::kCustom, needs, got, fix});
    };
    if (codes != codes_of(p.dtype_v)) {
      refuse("needs k and v that are both of 8 bits, both u4 or both of q's type",
             std::string("got k=") + to_string(p.dtype_k) + " v=" + to_string(p.dtype_v),
             {Fix::Op::kClear, to_string(Feature::kKvDtypesDiffer), ""});
    }
    return cuda::takes_cache(p, refusals) && claimed;
  }

  /// None but for rotated queries and splits of the keys.
  std::int64_t workspace_bytes(const AttentionKey& key, const Env&) const override {
    return cuda::forward_bytes(key.params());
  }

  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    if (runs_wgmma(key, env)) return wgmma_plan(p, kWgmmaVariants[0]);
    const std::int64_t dims = padded_dims(std::max(p.head_dim_qk, p.head_dim_v));
    KernelPlan plan;
    plan.workspace_bytes = workspace_bytes(key, env);
    const bool splits = cuda::splits_layout(p).bytes > 0;
    plan.kernel = std::string("cuda_flash_") + (splits ? "split_" : "") +
                  name_of(codes_of(p.dtype_k)) + to_string(p.dtype_q) + "_d" + std::to_string(dims);
    plan.sm = cuda::kTensorSm;
    plan.tile_q = splits ? cuda::kSplitRows : 128;
    plan.tile_kv = tile_keys(codes_of(p.dtype_k) != KeyCodes::kNone, dims);
    return plan;
  }

  /// Other schedules of wgmma's kernels.
  std::vector<std::string> variants(const AttentionKey& key, const Env& env) const override {
    std::vector<std::string> names;
    if (!runs_wgmma(key, env)) return names;
    const AttentionParams& p = key.params();
    for (const WgmmaVariant& variant : kWgmmaVariants) {
      const bool has_dims = std::max(p.head_dim_qk, p.head_dim_v) <= variant.max_dims;
      if (&variant != &kWgmmaVariants[0] && has_dims) names.emplace_back(variant.name);
    }
    return names;
  }

  Expected<KernelPlan> plan_variant(const AttentionKey& key, const Env& env,
                                    std::string_view name) const override {
    for (const std::string& own : variants(key, env)) {
      if (own != name) continue;
      for (const WgmmaVariant& variant : kWgmmaVariants) {
        if (variant.name == name) return wgmma_plan(key.params(), variant);
      }
    }
    return Backend::plan_variant(key, env, name);
  }

  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    ForwardArgs args;
    problem::make_problem(params, buffers, &args.problem);
    args.kv_entries = buffers.k.shape[0];
    const auto* const variant = static_cast<const WgmmaVariant*>(plan.state.get());
    if (variant != nullptr && wgmma_takes(args.problem)) {
      return launcher_.wgmma_forward(args, variant->schedule, launch.stream);
    }
    Status s = cuda::append_before(launcher_.append, buffers, launch, &args.problem);
    if (!s.ok()) return s;
    args.splits = cuda::splits_after_queries(params, plan, launch);
    return launcher_.forward(args, launch.stream);
  }

  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env&) const override {
    return cuda::delta_bytes(key.params());
  }

  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    const AttentionParams& p = key.params();
    const std::int64_t dims = padded_dims(std::max(p.head_dim_qk, p.head_dim_v));
    KernelPlan plan;
    plan.workspace_bytes = backward_workspace_bytes(key, env);
    plan.kernel =
        std::string("cuda_flash_backward_") + to_string(p.dtype_q) + "_d" + std::to_string(dims);
    plan.sm = cuda::kTensorSm;
    plan.tile_q = 32;
    plan.tile_kv = dims <= 128 ? 128 : 64;
    return plan;
  }

  Status execute_backward(const KernelPlan&, const AttentionParams& params, const Buffers& buffers,
                          const GradBuffers& gradients, const Launch& launch) const override {
    BackwardArgs args;
    problem::make_grad_problem(params, buffers, gradients, &args.grad);
    args.delta = static_cast<float*>(launch.workspace.data);
    return launcher_.backward(args, launch.stream);
  }

 private:
  static BackendInfo with_multiples(BackendInfo info, std::int64_t of) {
    for (Claims* claims : {&info.forward, &info.backward}) {
      claims->head_dim_qk.multiple_of = claims->head_dim_v.multiple_of = of;
      claims->head_dim_qk.min = claims->head_dim_v.min = of;
    }
    return info;
  }

  const BackendInfo& info_for(KeyCodes codes, const Env& env) const {
    const bool is_small = has_small_blocks(env.sm_version);
    switch (codes) {
      case KeyCodes::kBytes: return is_small ? small_codes_ : codes_;
      case KeyCodes::kGroups: return is_small ? small_groups_ : groups_;
      default: return is_small ? small_ : info_;
    }
  }

  /// In the names of kernels.
  static const char* name_of(KeyCodes codes) {
    return codes == KeyCodes::kNone ? "" : codes == KeyCodes::kBytes ? "codes_" : "u4_";
  }

  bool runs_wgmma(const AttentionKey& key, const Env& env) const {
    return launcher_.wgmma_forward != nullptr && env.sm_version == 90 && wgmma_has(key.params()) &&
           workspace_bytes(key, env) == 0;
  }

  static KernelPlan wgmma_plan(const AttentionParams& p, const WgmmaVariant& variant) {
    const bool is_wide = variant.schedule == Schedule::kWide;
    const std::int64_t dims = padded_dims(std::max(p.head_dim_qk, p.head_dim_v));
    KernelPlan plan;
    plan.kernel =
        std::string("cuda_flash_wgmma_") + to_string(p.dtype_q) + "_d" + std::to_string(dims);
    plan.sm = 90;
    plan.tile_q = is_wide ? 192 : 128;
    plan.tile_kv = dims == 128 ? 128 : 80;
    plan.state = std::shared_ptr<const void>(std::shared_ptr<const void>(), &variant);
    return plan;
  }

  BackendInfo info_;
  BackendInfo small_;                  // of devices with small blocks
  BackendInfo codes_, small_codes_;    // of keys and values of 8 bits
  BackendInfo groups_, small_groups_;  // of u4
  const Launcher& launcher_;
};

}  // namespace regard::cuda_flash

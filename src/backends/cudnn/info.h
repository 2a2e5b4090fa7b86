#pragma once

#include "backends/cudnn/record.h"
#include "regard/backend.h"

namespace regard::cudnn {

inline constexpr std::int32_t kMinSm = 80;

inline BackendInfo make_info() {
  BackendInfo info;
  info.ref.id = BackendId::kCudnn;
  info.summary =
      "cuDNN's attention graphs, for f16, bf16 and (forward) f8e4m3 without edits of the scores";
  info.device = DeviceType::kCuda;
  info.min_sm = kMinSm;
  info.determinism = Determinism::kNone;  // its backward adds with atomics
  info.needs_exact_extents = true;
  Claims& forward = info.forward;
  forward.offered = true;
  forward.dtypes = {{Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 8e-3, Dtype::kBf16},
                    {Dtype::kF16, Dtype::kF16, Dtype::kF16, 1e-3, Dtype::kF16}};
  // Derived, not measured: probabilities lose up to 2^-4 of themselves, an output of 8 bits again.
  constexpr Dtype kF8 = Dtype::kF8E4M3;
  forward.dtypes.push_back({kF8, kF8, Dtype::kBf16, 7e-2, kF8});
  forward.dtypes.push_back({kF8, kF8, Dtype::kF16, 7e-2, kF8});
  forward.dtypes.push_back({kF8, kF8, kF8, 1.3e-1, kF8});
  // No edit after which cuDNN might give a row without keys other values than regard does.
  forward.features = {Feature::kCausal,
                      Feature::kWindowLeft,
                      Feature::kWindowRight,
                      Feature::kDiagonalBottomRight,
                      Feature::kDescales,
                      Feature::kLse,
                      Feature::kGqa,
                      Feature::kHeadDimsDiffer,
                      Feature::kSeqlenQGreaterKv};
  forward.head_dim_qk = forward.head_dim_v = {kMinHeadDim, kMaxHeadDim, kHeadDimStep};
  forward.layouts = {true, true, false};
  forward.min_align_log2 = 4;
  info.backward = forward;
  info.backward.features = forward.features.without({Feature::kDescales});
  info.backward.dtypes = {{Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 1.6e-2, Dtype::kBf16},
                          {Dtype::kF16, Dtype::kF16, Dtype::kF16, 2e-3, Dtype::kF16}};
  return info;
}

}  // namespace regard::cudnn

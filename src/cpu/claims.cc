#include "cpu/claims.h"

#include "base/checked.h"

namespace regard::cpu {

Claims forward_claims() {
  Claims claims;
  claims.offered = true;
  claims.features = {Feature::kCausal,
                     Feature::kWindowLeft,
                     Feature::kWindowRight,
                     Feature::kDiagonalBottomRight,
                     Feature::kDiagonalOffset,
                     Feature::kDiagonalPerSequence,
                     Feature::kSoftcap,
                     Feature::kDropout,
                     Feature::kAttnMask,
                     Feature::kAttnBias,
                     Feature::kAlibi,
                     Feature::kSinks,
                     Feature::kSegmentIds,
                     Feature::kSeqlensQ,
                     Feature::kSeqlensKv,
                     Feature::kLse,
                     Feature::kSavedStats,
                     Feature::kGqa,
                     Feature::kHeadDimsDiffer,
                     Feature::kSeqlenQGreaterKv,
                     Feature::kNonFiniteBehindMask};
  claims.head_dim_qk = {1, kInt64Max, 1};
  claims.head_dim_v = {1, kInt64Max, 1};
  return claims;
}

}  // namespace regard::cpu

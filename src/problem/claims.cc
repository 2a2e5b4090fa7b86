#include "problem/claims.h"

#include "base/checked.h"

namespace regard::problem {

std::vector<DtypeClaim> f8_claims() {
  std::vector<DtypeClaim> claims;
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    claims.push_back({dtype, dtype, Dtype::kBf16, 4e-3});
    claims.push_back({dtype, dtype, Dtype::kF16, 5e-4});
    claims.push_back({dtype, dtype, Dtype::kF32, 2e-5});
    claims.push_back({dtype, dtype, dtype, dtype == Dtype::kF8E4M3 ? 7e-2 : 1.3e-1});
  }
  return claims;
}

std::vector<DtypeClaim> f8_backward_claims() {
  struct Rounded {
    Dtype dtype;
    double error_bound;  // of gradients of this type
  };
  constexpr Rounded kGradients[] = {{Dtype::kF32, 4e-3},
                                    {Dtype::kBf16, 8e-3},
                                    {Dtype::kF16, 5e-3},
                                    {Dtype::kF8E4M3, 7e-2},
                                    {Dtype::kF8E5M2, 1.3e-1}};
  std::vector<DtypeClaim> claims;
  for (const DtypeClaim& forward : f8_claims()) {
    for (const Rounded& gradients : kGradients) {
      DtypeClaim claim{forward.q, forward.kv, forward.out, gradients.error_bound};
      claim.gradients = gradients.dtype;
      claims.push_back(claim);
    }
  }
  return claims;
}

Claims forward_claims() {
  Claims claims;
  claims.offered = true;
  claims.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 2e-6},
                   {Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 4e-3},
                   {Dtype::kBf16, Dtype::kBf16, Dtype::kF32, 1e-5},
                   {Dtype::kF16, Dtype::kF16, Dtype::kF16, 5e-4},
                   {Dtype::kF16, Dtype::kF16, Dtype::kF32, 2e-5}};
  for (const DtypeClaim& claim : f8_claims()) claims.dtypes.push_back(claim);
  claims.features = {Feature::kCausal,
                     Feature::kWindowLeft,
                     Feature::kWindowRight,
                     Feature::kDiagonalBottomRight,
                     Feature::kDiagonalOffset,
                     Feature::kDiagonalPerSequence,
                     Feature::kSoftcap,
                     Feature::kDropout,
                     Feature::kDropoutOrigin,
                     Feature::kAttnMask,
                     Feature::kAttnBias,
                     Feature::kAlibi,
                     Feature::kSinks,
                     Feature::kSegmentIds,
                     Feature::kTreeMask,
                     Feature::kPacked,
                     Feature::kSeqlensQ,
                     Feature::kSeqlensKv,
                     Feature::kDescales,
                     Feature::kDescalesPerHead,
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

FeatureSet cache_features() {
  return {Feature::kPaged,  Feature::kCacheBatchIdx,     Feature::kCacheLeftpad, Feature::kAppendKv,
          Feature::kRotary, Feature::kRotaryInterleaved, Feature::kPositions};
}

FeatureSet quantised_features() {
  return {Feature::kHadamard, Feature::kScales, Feature::kScalesPerToken, Feature::kChannelScales,
          Feature::kKvDtypesDiffer};
}

void add_narrower_keys(Claims* claims) {
  const std::vector<DtypeClaim> own = claims->dtypes;
  for (const DtypeClaim& claim : own) {
    if (claim.q != claim.kv || size_of(claim.q) == 1) continue;
    for (const Dtype kv :
         {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kI8, Dtype::kU4}) {
      if (kv == claim.q || size_of(kv) > size_of(claim.q)) continue;
      claims->dtypes.push_back({claim.q, kv, claim.out, claim.error_bound});
    }
  }
}

Claims cpu_forward_claims() {
  Claims claims = forward_claims();
  add_narrower_keys(&claims);
  claims.features =
      claims.features.with(cache_features())
          .with(quantised_features())
          .with({Feature::kScoreFunction, Feature::kMaskFunction, Feature::kCaptured,
                 Feature::kBlockMask, Feature::kScoreCallback, Feature::kOutAmax, Feature::kScalesQ,
                 Feature::kScales1x32, Feature::kScales1x128, Feature::kScales128x128,
                 Feature::kFutureScales, Feature::kQuantizedProbs});
  return claims;
}

void add_bf16_pairs(Claims* claims, Dtype out, double error_bound) {
  for (const Isa& isa : {Isa::kAvx512Bf16, Isa::kNeonBf16}) {
    DtypeClaim pairs{Dtype::kBf16, Dtype::kBf16, out, error_bound, Dtype::kBf16};
    pairs.min_isa = isa;
    claims->dtypes.push_back(pairs);
  }
}

void add_bf16_pairs(Claims* forward) {
  constexpr double kOfBf16 = 6e-3;
  add_bf16_pairs(forward, Dtype::kBf16, kOfBf16);
  add_bf16_pairs(forward, Dtype::kF32, 4e-3);
  // Caches of 8-bit floats become bf16, which is exact, where that is one instruction.
  for (const Dtype kv : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    DtypeClaim pairs{Dtype::kBf16, kv, Dtype::kBf16, kOfBf16, Dtype::kBf16};
    pairs.min_isa = Isa::kAvx512Bf16;
    forward->dtypes.push_back(pairs);
  }
}

Claims backward_claims(const Claims& forward) {
  Claims claims = forward;
  claims.features = claims.features.without(cache_features())
                        .without(quantised_features())
                        .without({Feature::kDescales, Feature::kDescalesPerHead, Feature::kTreeMask,
                                  Feature::kOutAmax, Feature::kScalesQ, Feature::kScales1x32,
                                  Feature::kScales1x128, Feature::kScales128x128,
                                  Feature::kFutureScales, Feature::kQuantizedProbs})
                        .with({Feature::kDLse, Feature::kDelta});
  claims.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 3e-6},
                   {Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 4e-3},
                   {Dtype::kBf16, Dtype::kBf16, Dtype::kF32, 4e-3},
                   {Dtype::kF16, Dtype::kF16, Dtype::kF16, 5e-4},
                   {Dtype::kF16, Dtype::kF16, Dtype::kF32, 5e-4}};
  return claims;
}

Claims cpu_backward_claims(const Claims& forward) {
  Claims claims = backward_claims(forward);
  claims.features = claims.features.with(
      {Feature::kDescales, Feature::kDescalesPerHead, Feature::kScales, Feature::kScalesPerToken,
       Feature::kScalesQ, Feature::kScales1x32, Feature::kScales1x128, Feature::kScales128x128,
       Feature::kFutureScales, Feature::kQuantizedProbs});
  for (const DtypeClaim& claim : f8_backward_claims()) claims.dtypes.push_back(claim);
  return claims;
}

}  // namespace regard::problem

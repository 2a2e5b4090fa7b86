#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "regard/export.h"

namespace regard {

/// What a request needs and a backend claims. A backend that does not claim every feature of a
/// request is refused for it, so no feature is ever dropped.
enum class Feature : std::uint8_t {
  // from the options
  kCausal = 0,   // window_right == 0
  kWindowLeft,   // window_left >= 0
  kWindowRight,  // window_right > 0
  kDiagonalBottomRight,
  kDiagonalOffset,       // one offset for all sequences
  kDiagonalPerSequence,  // an int64 tensor [B] of offsets
  kSoftcap,
  kScoreFunction,
  kMaskFunction,
  kDropout,
  kDropoutOrigin,  // dropout_origin is given: random numbers do not begin at this call's first
  // from the tensors present
  kAttnMask,
  kAttnBias,
  kAlibi,
  kSinks,
  kSegmentIds,
  kSeqlensQ,
  kSeqlensKv,
  kBlockMask,
  kCaptured,           // captured0 to captured7: any of them
  kScoreCallback,      // functions of the host language
  kPacked,             // cu_seqlens_q/kv
  kPaged,              // page_table
  kAppendKv,           // k_new, v_new
  kRotary,             // rotary_cos, rotary_sin
  kRotaryInterleaved,  // an option; its pairs are neighbours
  kPositions,
  kHadamard,  // an option
  kCacheBatchIdx,
  kCacheLeftpad,
  kTreeMask,
  kDescales,         // descale_q, descale_k, descale_v: any of them
  kDescalesPerHead,  // one of them is [B,Hkv]
  kScales,           // scales_k, scales_v: either
  kScalesPerToken,   // one of them has a scale for each row
  kChannelScales,    // channel_scales_k
  kScalesQ,          // scales_q
  kScales1x32,       // an option: those of 8-bit codes are of blocks of so many rows and columns
  kScales1x128,      //
  kScales128x128,    //
  kFutureScales,     // an option: such blocks may reach past a diagonal
  kQuantizedProbs,   // an option: with q of 8-bit floats, P and dS are rounded to 8 bits, too
  // outputs and direction
  kLse,
  kScoresOut,
  kOutAmax,  // out_amax
  kSavedStats,
  kNeedsGrad,
  // what the backward will be given, with kNeedsGrad
  kDLse,
  kDelta,
  // relations, computed before extents are rounded; set unless certainly false
  kGqa,               // num_heads_q != num_heads_kv
  kHeadDimsDiffer,    // head_dim_qk != head_dim_v
  kKvDtypesDiffer,    // dtype_k != dtype_v
  kSeqlenQGreaterKv,  // seqlen_q > seqlen_kv, or lengths are data and may be so
  // added by select where keys may be hidden, unless the policy has assume_finite
  kNonFiniteBehindMask,
  kCount
};
inline constexpr int kFeatureCount = static_cast<int>(Feature::kCount);

/// "causal", "attn_bias", "non_finite_behind_mask", ...
REGARD_EXPORT const char* to_string(Feature feature) noexcept;
REGARD_EXPORT std::optional<Feature> parse_feature(std::string_view name) noexcept;

class FeatureSet {
 public:
  constexpr FeatureSet() noexcept = default;
  constexpr FeatureSet(std::initializer_list<Feature> list) noexcept {
    for (Feature f : list) bits_ |= bit(f);
  }
  static constexpr FeatureSet from_bits(std::uint64_t bits) noexcept {
    FeatureSet set;
    set.bits_ = bits;
    return set;
  }
  constexpr bool has(Feature f) const noexcept { return (bits_ & bit(f)) != 0; }
  constexpr void set(Feature f, bool on = true) noexcept {
    bits_ = on ? bits_ | bit(f) : bits_ & ~bit(f);
  }
  constexpr FeatureSet without(FeatureSet other) const noexcept {
    return from_bits(bits_ & ~other.bits_);
  }
  constexpr FeatureSet with(FeatureSet other) const noexcept {
    return from_bits(bits_ | other.bits_);
  }
  constexpr bool empty() const noexcept { return bits_ == 0; }
  constexpr std::uint64_t bits() const noexcept { return bits_; }
  friend constexpr bool operator==(FeatureSet, FeatureSet) noexcept = default;

 private:
  static constexpr std::uint64_t bit(Feature f) noexcept {
    return std::uint64_t{1} << static_cast<int>(f);
  }
  std::uint64_t bits_ = 0;
};

}  // namespace regard

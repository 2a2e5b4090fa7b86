#include <bit>
#include <cstdint>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/extents.h"
#include "core/text/thrown_by.h"
#include "regard/params.h"

namespace regard {
namespace {

constexpr std::int64_t kExactExtents = 64;
constexpr std::int64_t kStepsPerOctave = 8;
constexpr std::int64_t kMaxClass = std::int64_t{1} << 62;

/// Of requests with these features alone, every row sees every key. Slopes of ALiBi may be
/// infinite.
constexpr FeatureSet kHidesNothing{Feature::kDiagonalBottomRight,
                                   Feature::kDiagonalOffset,
                                   Feature::kDiagonalPerSequence,
                                   Feature::kSoftcap,
                                   Feature::kDropout,
                                   Feature::kDropoutOrigin,
                                   Feature::kSinks,
                                   Feature::kDescales,
                                   Feature::kDescalesPerHead,
                                   Feature::kLse,
                                   Feature::kScoresOut,
                                   Feature::kOutAmax,
                                   Feature::kSavedStats,
                                   Feature::kNeedsGrad,
                                   Feature::kDLse,
                                   Feature::kDelta,
                                   Feature::kGqa,
                                   Feature::kHeadDimsDiffer,
                                   Feature::kKvDtypesDiffer,
                                   Feature::kScales,
                                   Feature::kScalesPerToken,
                                   Feature::kChannelScales,
                                   Feature::kScalesQ,
                                   Feature::kScales1x32,
                                   Feature::kScales1x128,
                                   Feature::kScales128x128,
                                   Feature::kFutureScales,
                                   Feature::kQuantizedProbs,
                                   Feature::kHadamard,
                                   Feature::kSeqlenQGreaterKv};

}  // namespace

std::int64_t extent_class(std::int64_t n) noexcept {
  if (n <= kExactExtents) return n;
  const std::uint64_t octave = std::bit_floor(static_cast<std::uint64_t>(n - 1));
  return round_up(n, static_cast<std::int64_t>(octave) / kStepsPerOctave);
}

namespace {

Status round_extents(AttentionParams& p) {
  constexpr const char* kWhere = "AttentionKey::make";
  struct Rounded {
    const char* name;
    std::int64_t AttentionParams::*member;
  };
  static constexpr Rounded kRounded[] = {
      {"batch", &AttentionParams::batch},         {"seqlen_q", &AttentionParams::seqlen_q},
      {"seqlen_kv", &AttentionParams::seqlen_kv}, {"total_q", &AttentionParams::total_q},
      {"total_kv", &AttentionParams::total_kv},   {"num_pages", &AttentionParams::num_pages},
      {"tokens_q", &AttentionParams::tokens_q},   {"tokens_kv", &AttentionParams::tokens_kv}};
  for (const Rounded& extent : kRounded) {
    std::int64_t& n = p.*extent.member;
    const std::int64_t exact = n;
    n = extent_class(exact);
    if (n > kMaxClass) {
      return failure(StatusCode::kOverflow, kWhere, extent.name, " (", exact,
                     ") must be at most 2^62 after it is rounded up");
    }
  }
  if (const char* tensor = first_overflowing_tensor(p)) {
    return failure(StatusCode::kOverflow, kWhere, tensor,
                   ": its size in bytes with extents rounded up must fit 64 bits");
  }
  return {};
}

}  // namespace

Expected<AttentionKey> AttentionKey::make(const AttentionParams& params, bool assume_finite,
                                          KeyExtents extents) try {
  AttentionKey key;
  key.params_ = params;
  key.extents_ = extents;
  AttentionParams& p = key.params_;
  p.features.set(Feature::kNonFiniteBehindMask, false);
  const bool hides = !p.features.without(kHidesNothing).empty();
  p.features.set(Feature::kNonFiniteBehindMask, hides && !assume_finite);
  if (extents == KeyExtents::kRounded) {
    if (Status status = round_extents(p); !status.ok()) return status;
  }
  key.hash_ = hash_value(p);
  return key;
} catch (...) {
  return status_of_exception("plan");
}

}  // namespace regard

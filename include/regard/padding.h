#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "regard/export.h"
#include "regard/lengths.h"
#include "regard/params.h"
#include "regard/status.h"

namespace regard {

struct AttentionRequest;
struct CostModel;

/// The three ways to compute sequences of several lengths.
enum class PaddingPath : std::uint8_t {
  kLengths = 0,  // padded, with seqlens_q and seqlens_kv: the rows of a sequence come first
  kMask,         // padded, with a mask [B,1,1,Skv] of the keys that hold rows
  kPacked        // one after the other, with cu_seqlens_q and cu_seqlens_kv
};
inline constexpr int kPaddingPathCount = 3;
REGARD_EXPORT const char* to_string(PaddingPath path) noexcept;  // "lengths", "mask", "packed"

/// Which of them attention_padded() takes.
enum class PaddingPolicy : std::uint8_t {
  kAuto = 0,  // the one that is predicted to be the fastest
  kPadded,    // with lengths where rows come first, else with a mask
  kPacked
};
REGARD_EXPORT const char* to_string(PaddingPolicy policy) noexcept;  // "auto", "padded", "packed"
REGARD_EXPORT Expected<PaddingPolicy> parse_padding_policy(const std::string& name);

/// What one path costs, copies between padded and packed tensors included.
struct PathPrediction {
  PaddingPath path = PaddingPath::kLengths;
  double operations = 0.0;  // as Work::operations
  double bytes = 0.0;       // that are read and written
  double seconds = 0.0;
  friend bool operator==(const PathPrediction&, const PathPrediction&) = default;
};

/// The forward of a problem by each path, of tensors that lie as `params` say: packed, or padded.
/// The sequences are as long as the mean of total_q and total_kv (packed) or tokens_q and tokens_kv
/// (padded; 0 is the full length), so that nothing but params is read. Rates of 0 count as
/// default_rates(), and terms that the model lacks as those of default_costs(). Empty without
/// Feature::kPacked or a length, and for the keys of a cache.
REGARD_EXPORT std::vector<PathPrediction> predict_paths(const AttentionParams& params,
                                                        const CostModel& model);

/// The fastest of them; the first of equals, or kLengths where there are none.
REGARD_EXPORT PaddingPath fastest_path(const std::vector<PathPrediction>& paths) noexcept;

/// Which rows of padded q, k, v and out hold tokens, and how to compute them.
struct PaddedSequences {
  Lengths q;
  Lengths kv;
  PaddingPolicy policy = PaddingPolicy::kAuto;
};

/// The path that attention_padded() takes for these tensors, or why none can. The model is
/// that of predict_paths().
REGARD_EXPORT Expected<PaddingPath> choose_path(const AttentionRequest& request,
                                                const PaddedSequences& sequences,
                                                const CostModel& model);

}  // namespace regard

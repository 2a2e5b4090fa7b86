#include "regard/features.h"

#include <iterator>

namespace regard {
namespace {

constexpr const char* kFeatureNames[] = {
    "causal",
    "window_left",
    "window_right",
    "diagonal_bottom_right",
    "diagonal_offset",
    "diagonal_per_sequence",
    "softcap",
    "score_function",
    "mask_function",
    "dropout",
    "dropout_origin",
    "attn_mask",
    "attn_bias",
    "alibi",
    "sinks",
    "segment_ids",
    "seqlens_q",
    "seqlens_kv",
    "block_mask",
    "captured",
    "score_callback",
    "packed",
    "paged",
    "append_kv",
    "rotary",
    "rotary_interleaved",
    "positions",
    "hadamard",
    "cache_batch_idx",
    "cache_leftpad",
    "tree_mask",
    "descales",
    "descales_per_head",
    "scales",
    "scales_per_token",
    "channel_scales",
    "scales_q",
    "scales_1x32",
    "scales_1x128",
    "scales_128x128",
    "future_scales",
    "quantized_probs",
    "lse",
    "scores_out",
    "out_amax",
    "saved_stats",
    "needs_grad",
    "d_lse",
    "delta",
    "gqa",
    "head_dims_differ",
    "kv_dtypes_differ",
    "seqlen_q_greater_kv",
    "non_finite_behind_mask",
};
static_assert(std::size(kFeatureNames) == kFeatureCount);

}  // namespace

const char* to_string(Feature feature) noexcept {
  const auto i = static_cast<std::size_t>(feature);
  return i < std::size(kFeatureNames) ? kFeatureNames[i] : "?";
}

std::optional<Feature> parse_feature(std::string_view name) noexcept {
  for (int i = 0; i < kFeatureCount; ++i) {
    if (name == kFeatureNames[i]) return static_cast<Feature>(i);
  }
  return std::nullopt;
}

}  // namespace regard

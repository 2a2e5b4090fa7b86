#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "regard/export.h"
#include "regard/expression.h"
#include "regard/features.h"
#include "regard/status.h"
#include "regard/tensor.h"

namespace regard {

/// Where the diagonal lies: query i stands at key i + shift (see docs/semantics.md).
enum class Diagonal : std::uint8_t {
  kUnnamed = 0,  // valid where nothing measures from it, or where all choices agree
  kTopLeft,      // shift 0
  kBottomRight,  // shift len_kv - len_q, per sequence
  kOffset        // shift = the int64 of the Buffers, or one per sequence
};

/// The memory order of a [B,H,S,D] tensor's inner dimensions.
enum class Layout : std::uint8_t {
  kBhsd = 0,  // rows of one head are adjacent (stride_s == D), or S <= 1
  kBshd,      // heads of one position are adjacent (stride_h == D), or H <= 1
  kStrided    // anything else
};

enum class ScoresKind : std::uint8_t { kNone = 0, kScaled, kEdited, kProbs };

/// How the caller finds the scales of 8-bit floats. Kernels compute the same with any, but a choice
/// for one kind is not one for another.
enum class Fp8Recipe : std::uint8_t {
  kNone = 0,  // none, or one that regard does not name
  kDelayed,   // from the largest values of earlier steps
  kCurrent,   // from the tensor's own largest value
  kMxfp8,     // of 32 elements, powers of two
  kBlock      // of 1 x 128 or 128 x 128 elements
};

/// What of a row the scales of 8-bit codes are for. Numbers of a block: rows x columns.
enum class ScaleLayout : std::uint8_t {
  kRows = 0,  // all of a row, or of an entry
  k1x32,      // MXFP8
  k1x128,
  k128x128
};

/// The rows and columns of a block; 0 columns: all.
struct ScaleBlock {
  std::int64_t rows = 1;
  std::int64_t columns = 0;
};
constexpr ScaleBlock block_of(ScaleLayout layout) noexcept {
  switch (layout) {
    case ScaleLayout::kRows: break;
    case ScaleLayout::k1x32: return {1, 32};
    case ScaleLayout::k1x128: return {1, 128};
    case ScaleLayout::k128x128: return {128, 128};
  }
  return {};
}
/// Of the features of a problem.
constexpr ScaleLayout scale_layout_of(FeatureSet features) noexcept {
  return features.has(Feature::kScales1x32)      ? ScaleLayout::k1x32
         : features.has(Feature::kScales1x128)   ? ScaleLayout::k1x128
         : features.has(Feature::kScales128x128) ? ScaleLayout::k128x128
                                                 : ScaleLayout::kRows;
}
/// The features with that layout alone.
constexpr FeatureSet with_scale_layout(FeatureSet features, ScaleLayout layout) noexcept {
  features.set(Feature::kScales1x32, layout == ScaleLayout::k1x32);
  features.set(Feature::kScales1x128, layout == ScaleLayout::k1x128);
  features.set(Feature::kScales128x128, layout == ScaleLayout::k128x128);
  return features;
}

/// Which of a broadcast tensor's dimensions [B,H,Sq,Skv] have their full extent (bit i: dim i).
/// An extent of 1 counts as broadcast.
using BroadcastDims = std::uint8_t;

REGARD_EXPORT const char* to_string(Diagonal) noexcept;
REGARD_EXPORT const char* to_string(Layout) noexcept;
REGARD_EXPORT const char* to_string(ScoresKind) noexcept;
REGARD_EXPORT const char* to_string(Fp8Recipe) noexcept;
REGARD_EXPORT const char* to_string(ScaleLayout) noexcept;  // "rows", "1x32", ...

inline constexpr std::int64_t kUnlimited = -1;  // of a window's side

/// A problem without its tensors: complete, canonical, without pointers. Equal params lead to the
/// same decision on the same machine. Extents (batch, seqlen_*, total_*, num_pages) are upper
/// bounds. for_each_field below lists every field; ==, hash, text and JSON are made from it.
struct AttentionParams {
  Device device{};
  Dtype dtype_q = Dtype::kF32;
  Dtype dtype_k = Dtype::kF32;
  Dtype dtype_v = Dtype::kF32;
  Dtype dtype_out = Dtype::kF32;
  Dtype dtype_bias = Dtype::kF32;  // of attn_bias; kF32 when absent
  // With needs_grad where q has 8-bit floats, kF32 otherwise: the types of a backward's d_out, and
  // of d_q, d_k and d_v, which elsewhere are those of out and of q, k and v.
  Dtype dtype_d_out = Dtype::kF32;
  Dtype dtype_gradients = Dtype::kF32;
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;

  std::int64_t batch = 1;
  std::int64_t num_heads_q = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_kv = 1;
  std::int64_t head_dim_qk = 1;
  std::int64_t head_dim_v = 1;
  std::int64_t total_q = 0;   // packed: rows of q; 0 otherwise
  std::int64_t total_kv = 0;  // packed: rows of k and v; 0 otherwise
  // Padded with lengths: the sum of the lengths, as the caller states it for predictions
  // (regard/padding.h); 0: not stated
  std::int64_t tokens_q = 0;
  std::int64_t tokens_kv = 0;
  std::int64_t num_pages = 0;  // paged; 0 otherwise
  std::int64_t page_size = 0;
  std::int64_t rotary_dim = 0;

  Layout layout_q = Layout::kBhsd;
  Layout layout_k = Layout::kBhsd;
  Layout layout_v = Layout::kBhsd;
  Layout layout_out = Layout::kBhsd;
  // log2 of the bytes that data and every row start are aligned to, at most kMaxAlignLog2
  std::int32_t align_q_log2 = 4;
  std::int32_t align_k_log2 = 4;
  std::int32_t align_v_log2 = 4;
  std::int32_t align_out_log2 = 4;

  FeatureSet features{};
  BroadcastDims mask_dims = 0;
  BroadcastDims bias_dims = 0;

  Diagonal diagonal = Diagonal::kUnnamed;
  std::int64_t window_left = kUnlimited;
  std::int64_t window_right = kUnlimited;  // 0: causal
  double softmax_scale = 1.0;
  double softcap = 0.0;    // 0: none
  double dropout_p = 0.0;  // probability of dropping
  ScoresKind scores_kind = ScoresKind::kNone;
  Expression score_function{};
  Expression mask_function{};
  std::int64_t block_size_q = 0;  // of block_mask; 0 otherwise
  std::int64_t block_size_kv = 0;

  REGARD_EXPORT friend bool operator==(const AttentionParams& a, const AttentionParams& b) noexcept;
};

inline constexpr std::int32_t kMaxAlignLog2 = 4;  // 16 bytes: no kernel or library needs more

/// Calls f("name", params.field) for every field, in declaration order.
template <class Params, class F>
constexpr void for_each_field(Params& p, F&& f) {
  f("device", p.device);
  f("dtype_q", p.dtype_q);
  f("dtype_k", p.dtype_k);
  f("dtype_v", p.dtype_v);
  f("dtype_out", p.dtype_out);
  f("dtype_bias", p.dtype_bias);
  f("dtype_d_out", p.dtype_d_out);
  f("dtype_gradients", p.dtype_gradients);
  f("fp8_recipe", p.fp8_recipe);
  f("batch", p.batch);
  f("num_heads_q", p.num_heads_q);
  f("num_heads_kv", p.num_heads_kv);
  f("seqlen_q", p.seqlen_q);
  f("seqlen_kv", p.seqlen_kv);
  f("head_dim_qk", p.head_dim_qk);
  f("head_dim_v", p.head_dim_v);
  f("total_q", p.total_q);
  f("total_kv", p.total_kv);
  f("tokens_q", p.tokens_q);
  f("tokens_kv", p.tokens_kv);
  f("num_pages", p.num_pages);
  f("page_size", p.page_size);
  f("rotary_dim", p.rotary_dim);
  f("layout_q", p.layout_q);
  f("layout_k", p.layout_k);
  f("layout_v", p.layout_v);
  f("layout_out", p.layout_out);
  f("align_q_log2", p.align_q_log2);
  f("align_k_log2", p.align_k_log2);
  f("align_v_log2", p.align_v_log2);
  f("align_out_log2", p.align_out_log2);
  f("features", p.features);
  f("mask_dims", p.mask_dims);
  f("bias_dims", p.bias_dims);
  f("diagonal", p.diagonal);
  f("window_left", p.window_left);
  f("window_right", p.window_right);
  f("softmax_scale", p.softmax_scale);
  f("softcap", p.softcap);
  f("dropout_p", p.dropout_p);
  f("scores_kind", p.scores_kind);
  f("score_function", p.score_function);
  f("mask_function", p.mask_function);
  f("block_size_q", p.block_size_q);
  f("block_size_kv", p.block_size_kv);
}

/// The fields of params that say how q, k, v or out lies in memory.
struct TensorLayout {
  const char* tensor;
  Layout AttentionParams::*order;
  std::int32_t AttentionParams::*align_log2;
  const char* order_field;  // their names in for_each_field
  const char* align_field;
};
inline constexpr TensorLayout kTensorLayouts[] = {
    {"q", &AttentionParams::layout_q, &AttentionParams::align_q_log2, "layout_q", "align_q_log2"},
    {"k", &AttentionParams::layout_k, &AttentionParams::align_k_log2, "layout_k", "align_k_log2"},
    {"v", &AttentionParams::layout_v, &AttentionParams::align_v_log2, "layout_v", "align_v_log2"},
    {"out", &AttentionParams::layout_out, &AttentionParams::align_out_log2, "layout_out",
     "align_out_log2"},
};

REGARD_EXPORT std::size_t hash_value(const AttentionParams& params) noexcept;

/// The case words of the problem ("b1 hq8 hkv8 sq128 skv128 d64 f32 causal diag=tl").
REGARD_EXPORT std::string to_string(const AttentionParams& params);
REGARD_EXPORT std::string to_json(const AttentionParams& params);

/// Recomputes the features that follow from other fields, and clears fields whose feature is
/// absent. Idempotent. describe, parse_case and apply_fix all end here.
REGARD_EXPORT void canonicalize(AttentionParams& params) noexcept;

/// Checks every rule that needs no tensors: extents >= 0, heads divisible, products within 64 bits,
/// finite scale, windows >= -1, dropout_p in [0, 1) with a 16-bit threshold in 1..65535, the
/// diagonal named where it must be. `where` is the function that the message names.
REGARD_EXPORT Status validate(const AttentionParams& params, const char* where);

/// The default of softmax_scale: 1 / sqrt(head_dim_qk), and 1 for head_dim 0.
REGARD_EXPORT double default_softmax_scale(std::int64_t head_dim_qk) noexcept;

enum class KeyExtents : std::uint8_t { kRounded = 0, kExact };

/// What selection and plans depend on: params with their extents rounded up to classes, or exact
/// for backends with needs_exact_extents.
class AttentionKey {
 public:
  AttentionKey() = default;
  /// Extents are exact to 64, then rounded up in eight steps for each doubling. kOverflow when a
  /// class exceeds 2^62. Without assume_finite, a problem that may hide keys gets
  /// Feature::kNonFiniteBehindMask.
  REGARD_EXPORT static Expected<AttentionKey> make(const AttentionParams& params,
                                                   bool assume_finite,
                                                   KeyExtents extents = KeyExtents::kRounded);
  const AttentionParams& params() const noexcept { return params_; }
  KeyExtents extents() const noexcept { return extents_; }
  std::size_t hash() const noexcept { return hash_; }
  friend bool operator==(const AttentionKey& a, const AttentionKey& b) noexcept {
    return a.hash_ == b.hash_ && a.extents_ == b.extents_ && a.params_ == b.params_;
  }

 private:
  AttentionParams params_{};
  KeyExtents extents_ = KeyExtents::kRounded;
  std::size_t hash_ = 0;
};

/// The class of an extent n: n itself to 64, then n rounded up to an eighth of the power of two
/// below it.
REGARD_EXPORT std::int64_t extent_class(std::int64_t n) noexcept;

}  // namespace regard

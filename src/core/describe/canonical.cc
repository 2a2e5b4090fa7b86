#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>

#include "function/uses.h"
#include "regard/params.h"

namespace regard {
namespace {

// The type and the extents of q, k, v or out.
struct TensorExtents {
  Dtype dtype;
  std::int64_t heads;
  std::int64_t rows;  // positions along S
  std::int64_t head_dim;
};

// What no memory can contradict: one position is in any order, one head is dense or padded; dense
// rows cannot be aligned better than their length, nor elements worse than their size.
void canonicalize(const TensorExtents& of, Layout& order, std::int32_t& align_log2) noexcept {
  if (of.rows <= 1) {
    order = Layout::kBhsd;
  } else if (of.heads <= 1 && order == Layout::kStrided) {
    order = Layout::kBshd;
  }
  const std::uint64_t size = static_cast<std::uint64_t>(size_of(of.dtype));
  if (size == 0) return;
  const bool dense_rows =
      order == Layout::kBhsd ? of.rows > 1 : order == Layout::kBshd && of.heads > 1;
  std::int32_t max = kMaxAlignLog2;
  if (dense_rows && of.head_dim > 0) {
    const auto row_bytes = static_cast<std::uint64_t>(bytes_of(of.dtype, of.head_dim));
    max = std::min(max, static_cast<std::int32_t>(std::countr_zero(row_bytes)));
  }
  align_log2 = std::clamp(align_log2, static_cast<std::int32_t>(std::countr_zero(size)), max);
}

void canonicalize_layouts(AttentionParams& p) noexcept {
  const bool packed = p.features.has(Feature::kPacked);
  const bool paged = p.features.has(Feature::kPaged);
  const std::int64_t rows_q = packed ? p.total_q : p.seqlen_q;
  const std::int64_t rows_kv = paged ? p.page_size : packed ? p.total_kv : p.seqlen_kv;
  const TensorExtents extents[] = {{p.dtype_q, p.num_heads_q, rows_q, p.head_dim_qk},
                                   {p.dtype_k, p.num_heads_kv, rows_kv, p.head_dim_qk},
                                   {p.dtype_v, p.num_heads_kv, rows_kv, p.head_dim_v},
                                   {p.dtype_out, p.num_heads_q, rows_q, p.head_dim_v}};
  for (std::size_t i = 0; i < std::size(kTensorLayouts); ++i) {
    canonicalize(extents[i], p.*kTensorLayouts[i].order, p.*kTensorLayouts[i].align_log2);
  }
}

// Fields that mean something only beside their feature.
void clear_unused(AttentionParams& p) noexcept {
  const FeatureSet f = p.features;
  BroadcastDims wide = 0;  // dimensions in which full and broadcast differ
  const std::int64_t extents[] = {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv};
  for (int i = 0; i < 4; ++i) {
    if (extents[i] != 1) wide = static_cast<BroadcastDims>(wide | 1 << i);
  }
  p.mask_dims = f.has(Feature::kAttnMask) ? p.mask_dims & wide : BroadcastDims{0};
  p.bias_dims = f.has(Feature::kAttnBias) ? p.bias_dims & wide : BroadcastDims{0};
  if (!f.has(Feature::kAttnBias)) p.dtype_bias = Dtype::kF32;
  if (!f.has(Feature::kPacked)) p.total_q = p.total_kv = 0;
  if (f.has(Feature::kPaged)) p.total_kv = 0;  // the page table says where keys lie
  if (!f.has(Feature::kSeqlensQ)) p.tokens_q = 0;
  if (!f.has(Feature::kSeqlensKv)) p.tokens_kv = 0;
  if (!f.has(Feature::kPaged)) p.num_pages = p.page_size = 0;
  if (!f.has(Feature::kRotary)) {
    p.rotary_dim = 0;
    p.features = p.features.without({Feature::kRotaryInterleaved, Feature::kPositions});
  }
  if (!f.has(Feature::kMaskFunction)) p.features.set(Feature::kBlockMask, false);
  if (!p.features.has(Feature::kBlockMask)) p.block_size_q = p.block_size_kv = 0;
  if (!f.has(Feature::kDescales)) p.features.set(Feature::kDescalesPerHead, false);
}

// Elsewhere gradients have the types of their tensors.
void canonicalize_f8(AttentionParams& p) noexcept {
  if (is_f8(p.dtype_q) && p.features.has(Feature::kNeedsGrad)) return;
  p.dtype_d_out = p.dtype_gradients = Dtype::kF32;
}

// k and v of 8 bits may have scales, and integers need them; those of u4 are of rows. One row has a
// scale of its own anyhow.
void canonicalize_scales(AttentionParams& p) noexcept {
  FeatureSet& f = p.features;
  if (!is_quantised(p.dtype_k)) f.set(Feature::kChannelScales, false);
  if (!is_quantised(p.dtype_k) && !is_quantised(p.dtype_v)) f.set(Feature::kScales, false);
  const bool by_channel = f.has(Feature::kChannelScales);
  if (p.dtype_v == Dtype::kI8 || (p.dtype_k == Dtype::kI8 && !by_channel)) f.set(Feature::kScales);
  if (p.dtype_k == Dtype::kU4 || p.dtype_v == Dtype::kU4) {
    f = f.with({Feature::kScales, Feature::kScalesPerToken});
  }
  const std::int64_t rows = f.has(Feature::kPaged)    ? p.page_size
                            : f.has(Feature::kPacked) ? p.total_kv
                                                      : p.seqlen_kv;
  if (!f.has(Feature::kScales) || rows == 1) f.set(Feature::kScalesPerToken, false);
  if (!is_f8(p.dtype_q)) f = f.without({Feature::kScalesQ, Feature::kQuantizedProbs});
  const auto has_codes = [&](Dtype dtype) { return is_quantised(dtype) && dtype != Dtype::kU4; };
  const bool of_keys = f.has(Feature::kScales) && (has_codes(p.dtype_k) || has_codes(p.dtype_v));
  if (!of_keys && !f.has(Feature::kScalesQ)) f = with_scale_layout(f, ScaleLayout::kRows);
  const bool has_u4 = p.dtype_k == Dtype::kU4 || p.dtype_v == Dtype::kU4;
  if (scale_layout_of(f) != ScaleLayout::kRows && !has_u4) f.set(Feature::kScalesPerToken, false);
  // A mask function that is causal, too, is recognised where a call is described.
  if (!f.has(Feature::kScales128x128)) f.set(Feature::kFutureScales, false);
}

function::Uses uses_of(const AttentionParams& p) noexcept {
  return function::uses_of(p.score_function) | function::uses_of(p.mask_function);
}

void canonicalize_diagonal(AttentionParams& p) noexcept {
  FeatureSet& f = p.features;
  // Dropout counts rows from the diagonal where one is named.
  const bool measured = p.window_left >= 0 || p.window_right >= 0 || f.has(Feature::kAlibi) ||
                        f.has(Feature::kDropout) || uses_of(p).position;
  if (!measured) p.diagonal = Diagonal::kUnnamed;
  f.set(Feature::kDiagonalBottomRight, p.diagonal == Diagonal::kBottomRight);
  const bool offset = p.diagonal == Diagonal::kOffset;
  const bool per_sequence = offset && f.has(Feature::kDiagonalPerSequence);
  f.set(Feature::kDiagonalPerSequence, per_sequence);
  f.set(Feature::kDiagonalOffset, offset && !per_sequence);
}

enum class Proof : std::uint8_t { kFalse = 0, kTrue, kUnknown };

// Extents bound lengths from above. Where lengths are data, a sequence may be as short as 0.
Proof seqlen_q_greater_kv(const AttentionParams& p) noexcept {
  const FeatureSet f = p.features;
  const bool packed = f.has(Feature::kPacked);
  const bool data_q = packed || f.has(Feature::kSeqlensQ);
  const bool data_kv = packed || f.has(Feature::kSeqlensKv) || f.has(Feature::kPaged);
  const std::int64_t min_q = data_q ? 0 : p.seqlen_q;
  const std::int64_t min_kv = data_kv ? 0 : p.seqlen_kv;
  if (min_q > p.seqlen_kv) return Proof::kTrue;
  return p.seqlen_q <= min_kv ? Proof::kFalse : Proof::kUnknown;
}

}  // namespace

void canonicalize(AttentionParams& p) noexcept {
  FeatureSet& f = p.features;
  if (f.has(Feature::kPacked)) {  // no sequence is longer than all together
    p.seqlen_q = std::min(p.seqlen_q, p.total_q);
    if (!f.has(Feature::kPaged)) p.seqlen_kv = std::min(p.seqlen_kv, p.total_kv);
  }
  // A page table needs them, and so do rows that follow those of a cache, or precede its keys.
  if (f.has(Feature::kPaged) || f.has(Feature::kAppendKv) || f.has(Feature::kCacheLeftpad)) {
    f.set(Feature::kSeqlensKv);
  }
  // Without new rows nothing else says where queries stand.
  if (f.has(Feature::kRotary) && !f.has(Feature::kAppendKv)) f.set(Feature::kPositions);
  canonicalize_scales(p);
  canonicalize_f8(p);
  // -0 is 0: it must not be another key.
  p.softmax_scale += 0.0;
  p.softcap += 0.0;
  p.dropout_p += 0.0;
  f.set(Feature::kCausal, p.window_right == 0);
  f.set(Feature::kWindowLeft, p.window_left >= 0);
  f.set(Feature::kWindowRight, p.window_right > 0);
  f.set(Feature::kSoftcap, p.softcap != 0.0);
  f.set(Feature::kScoreFunction, !p.score_function.empty());
  f.set(Feature::kMaskFunction, !p.mask_function.empty());
  f.set(Feature::kCaptured, uses_of(p).captured);
  f.set(Feature::kDropout, p.dropout_p != 0.0);
  if (p.dropout_p == 0.0) f.set(Feature::kDropoutOrigin, false);
  f.set(Feature::kScoresOut, p.scores_kind != ScoresKind::kNone);
  f.set(Feature::kGqa, p.num_heads_q != p.num_heads_kv);
  f.set(Feature::kHeadDimsDiffer, p.head_dim_qk != p.head_dim_v);
  f.set(Feature::kKvDtypesDiffer, p.dtype_k != p.dtype_v);
  // A backend that does not claim a relation must not run where the relation may hold.
  f.set(Feature::kSeqlenQGreaterKv, seqlen_q_greater_kv(p) != Proof::kFalse);
  f.set(Feature::kNonFiniteBehindMask, false);  // the key's, by policy
  if (!f.has(Feature::kNeedsGrad)) f = f.without({Feature::kDLse, Feature::kDelta});
  canonicalize_diagonal(p);
  clear_unused(p);
  canonicalize_layouts(p);
}

}  // namespace regard

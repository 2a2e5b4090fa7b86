#include "cpu/make_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace regard::cpu {
namespace {

static_assert(static_cast<int>(Element::kF64) == static_cast<int>(Dtype::kF64));
static_assert(static_cast<int>(Element::kF32) == static_cast<int>(Dtype::kF32));
static_assert(static_cast<int>(Element::kBf16) == static_cast<int>(Dtype::kBf16));
static_assert(static_cast<int>(Element::kF16) == static_cast<int>(Dtype::kF16));
static_assert(static_cast<int>(Element::kU8) == static_cast<int>(Dtype::kU8));
static_assert(static_cast<int>(Element::kBool) == static_cast<int>(Dtype::kBool));
static_assert(static_cast<int>(ScoresStage::kScaled) == static_cast<int>(ScoresKind::kScaled));
static_assert(static_cast<int>(ScoresStage::kEdited) == static_cast<int>(ScoresKind::kEdited));
static_assert(static_cast<int>(ScoresStage::kProbs) == static_cast<int>(ScoresKind::kProbs));

/// An extent of 1 is broadcast: its stride is never used, so it may be anything.
View view_of(const TensorView& tensor) noexcept {
  View view;
  view.data = static_cast<char*>(tensor.data);
  view.type = static_cast<Element>(tensor.dtype);
  view.present = tensor.present();
  for (int i = 0; i < tensor.rank; ++i) {
    view.stride[i] = tensor.shape[i] == 1 ? 0 : tensor.strides[i];
  }
  return view;
}

/// alibi_slopes are [Hq] or [B,Hq].
View slopes_of(const TensorView& tensor) noexcept {
  View view = view_of(tensor);
  if (tensor.rank == 1) {
    view.stride[1] = view.stride[0];
    view.stride[0] = 0;
  }
  return view;
}

/// Below this a scale is no factor of the exponent: infinite differences times 0 are NaN.
constexpr double kLeastFactor = 0x1p-100;

DiagonalKind diagonal_of(Diagonal diagonal) noexcept {
  switch (diagonal) {
    case Diagonal::kBottomRight: return DiagonalKind::kBottomRight;
    case Diagonal::kOffset: return DiagonalKind::kOffset;
    case Diagonal::kTopLeft:
    case Diagonal::kUnnamed:  // shift 0, or all choices agree
      break;
  }
  return DiagonalKind::kTopLeft;
}

}  // namespace

Problem make_problem(const AttentionParams& params, const Buffers& buffers) noexcept {
  Problem p;
  p.batch = params.batch;
  p.num_heads_q = params.num_heads_q;
  p.num_heads_kv = params.num_heads_kv;
  p.group_size = params.num_heads_kv > 0 ? params.num_heads_q / params.num_heads_kv : 1;
  p.seqlen_q = params.seqlen_q;
  p.seqlen_kv = params.seqlen_kv;
  p.head_dim_qk = params.head_dim_qk;
  p.head_dim_v = params.head_dim_v;

  p.q = view_of(buffers.q);
  p.k = view_of(buffers.k);
  p.v = view_of(buffers.v);
  p.out = view_of(buffers.out);
  p.lse = view_of(buffers.lse);
  p.scores = view_of(buffers.scores_out);
  p.mask = view_of(buffers.attn_mask);
  p.bias = view_of(buffers.attn_bias);
  p.slopes = slopes_of(buffers.alibi_slopes);
  p.sinks = view_of(buffers.sinks);
  p.segments_q = view_of(buffers.segment_ids_q);
  p.segments_kv = view_of(buffers.segment_ids_kv);
  p.lens_q = view_of(buffers.seqlens_q);
  p.lens_kv = view_of(buffers.seqlens_kv);
  p.offsets = view_of(buffers.diagonal_offsets);

  p.diagonal = diagonal_of(params.diagonal);
  p.scores_stage =
      p.scores.present ? static_cast<ScoresStage>(params.scores_kind) : ScoresStage::kNone;
  p.diagonal_offset = buffers.diagonal_offset;
  p.window_left = params.window_left;
  p.window_right = params.window_right;
  // Any finite double is a scale or a cap; the arithmetic holds its own type's range.
  const bool f64 = params.dtype_q == Dtype::kF64;
  const double most = f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const double least = f64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  p.softmax_scale = std::clamp(params.softmax_scale, -most, most);
  p.softcap = params.softcap > 0.0 ? std::clamp(params.softcap, least, most) : 0.0;
  // What is measured in natural units (a bias, a sink, scores shown) needs scores in them.
  p.scales_first = p.softcap > 0.0 || p.slopes.present || p.bias.present || p.sinks.present ||
                   p.scores.present || std::abs(p.softmax_scale) < kLeastFactor;
  p.unit = p.scales_first ? 1.0 : std::abs(p.softmax_scale);
  p.factor = std::min(p.unit * std::numbers::log2e, most);
  p.dropout = semantics::make_dropout(params.dropout_p, buffers.rng_seed, buffers.rng_offset);
  return p;
}

}  // namespace regard::cpu

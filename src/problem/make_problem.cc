#include "problem/make_problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/checked.h"
#include "function/program.h"

namespace regard::problem {
namespace {

static_assert(static_cast<int>(Element::kF64) == static_cast<int>(Dtype::kF64));
static_assert(static_cast<int>(Element::kF32) == static_cast<int>(Dtype::kF32));
static_assert(static_cast<int>(Element::kBf16) == static_cast<int>(Dtype::kBf16));
static_assert(static_cast<int>(Element::kF16) == static_cast<int>(Dtype::kF16));
static_assert(static_cast<int>(Element::kF8E4M3) == static_cast<int>(Dtype::kF8E4M3));
static_assert(static_cast<int>(Element::kF8E5M2) == static_cast<int>(Dtype::kF8E5M2));
static_assert(static_cast<int>(Element::kI8) == static_cast<int>(Dtype::kI8));
static_assert(static_cast<int>(Element::kU8) == static_cast<int>(Dtype::kU8));
static_assert(static_cast<int>(Element::kBool) == static_cast<int>(Dtype::kBool));
static_assert(static_cast<int>(Element::kU4) == static_cast<int>(Dtype::kU4) &&
              kGroup == kGroupSize);
static_assert(static_cast<int>(ScoresStage::kScaled) == static_cast<int>(ScoresKind::kScaled));
static_assert(static_cast<int>(ScoresStage::kEdited) == static_cast<int>(ScoresKind::kEdited));
static_assert(static_cast<int>(ScoresStage::kProbs) == static_cast<int>(ScoresKind::kProbs));

/// Fills a view that is absent so far; in place, for copies of views were a tenth of a small call.
/// An extent of 1 is broadcast: its stride is never used, so it may be anything.
void set_view(const TensorView& tensor, View* view) noexcept {
  if (!tensor.present()) return;
  view->data = static_cast<char*>(tensor.data);
  view->type = static_cast<Element>(tensor.dtype);
  view->present = true;
  for (int i = 0; i < tensor.rank; ++i) {
    view->stride[i] = tensor.shape[i] == 1 ? 0 : tensor.strides[i];
  }
  if (tensor.dtype != Dtype::kU4) return;
  for (int i = 0; i + 1 < tensor.rank; ++i) view->stride[i] /= 2;  // of bytes
}

/// One for all, or [B,Hkv].
void set_descale(const TensorView& tensor, View* view) noexcept {
  set_view(tensor, view);
  if (tensor.rank == 1) view->stride[0] = 0;
}

/// Rows that lie in sequences one after another: [1,H,total,...], or without its first dimension.
void set_rows(const TensorView& tensor, const RowStarts& starts, View* view) noexcept {
  set_view(tensor, view);
  if (starts.data == nullptr || !view->present) return;
  view->starts = starts;
}

/// A number, or some, for each row: [B,Hq,Sq], [B,Hq,Sq,2], or packed [Hq,total_q] and
/// [1,Hq,total_q,2].
void set_row_numbers(const TensorView& tensor, const RowStarts& starts, View* view) noexcept {
  set_rows(tensor, starts, view);
  if (tensor.rank != 2) return;
  view->stride[2] = view->stride[1];
  view->stride[1] = view->stride[0];
  view->stride[0] = 0;
}

/// segment_ids are [B,S], or packed [total].
void set_positions(const TensorView& tensor, const RowStarts& starts, View* view) noexcept {
  set_rows(tensor, starts, view);
  view->stride[2] = view->stride[tensor.rank == 1 ? 0 : 1];
  view->stride[1] = 0;
  if (tensor.rank == 1) view->stride[0] = 0;
}

/// New rows bring scales of their own then.
bool has_scale_a_row(const TensorView& scales, const TensorView& rows) noexcept {
  return scales.present() && scales.shape[2] == rows.shape[2];
}

RowStarts starts_of(const TensorView& cu_seqlens) noexcept {
  return {static_cast<const char*>(cu_seqlens.data), cu_seqlens.dtype == Dtype::kI64};
}

void set_pages(const TensorView& table, std::int64_t page_size, PageTable* pages) noexcept {
  if (!table.present()) return;
  pages->ids = static_cast<const std::int32_t*>(table.data);
  for (int i = 0; i < 2; ++i) pages->stride[i] = table.strides[i];
  pages->page_size = page_size;
}

/// alibi_slopes are [Hq] or [B,Hq].
void set_slopes(const TensorView& tensor, View* view) noexcept {
  set_view(tensor, view);
  if (tensor.rank != 1) return;
  view->stride[1] = view->stride[0];
  view->stride[0] = 0;
}

/// Below this a scale is no factor of the exponent: infinite differences times 0 are NaN.
constexpr double kMinFactor = 0x1p-100;

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

CapturedType captured_type(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kF64: return CapturedType::kF64;
    case Dtype::kBf16: return CapturedType::kBf16;
    case Dtype::kF16: return CapturedType::kF16;
    case Dtype::kI32: return CapturedType::kI32;
    case Dtype::kI64: return CapturedType::kI64;
    case Dtype::kBool:
    case Dtype::kU8: return CapturedType::kBytes;
    default: return CapturedType::kF32;
  }
}

void set_captured(const TensorView& tensor, CapturedView* view) noexcept {
  if (!tensor.present()) return;
  view->data = static_cast<char*>(tensor.data);
  view->type = captured_type(tensor.dtype);
  for (int i = 0; i < 4; ++i) {
    view->stride[i] = i < tensor.rank ? tensor.strides[i] : 0;
    view->extent[i] = i < tensor.rank ? tensor.shape[i] : 1;
  }
}

bool has_functions(const AttentionParams& params) noexcept {
  return params.features.has(Feature::kScoreFunction) ||
         params.features.has(Feature::kMaskFunction) ||
         params.features.has(Feature::kScoreCallback);
}

/// Programs were compiled when the request was described.
void set_functions(const AttentionParams& params, const Buffers& buffers, Functions* f) {
  if (!params.score_function.empty()) {
    const function::Programs& programs = function::programs_of(params.score_function);
    f->score = programs.value.view;
    f->gradient = programs.gradient.view;
  }
  if (!params.mask_function.empty()) {
    f->mask = function::programs_of(params.mask_function).value.view;
  }
  const TensorView* const captured[] = {&buffers.captured0, &buffers.captured1, &buffers.captured2,
                                        &buffers.captured3, &buffers.captured4, &buffers.captured5,
                                        &buffers.captured6, &buffers.captured7};
  for (int i = 0; i < kMaxCapturedViews; ++i) set_captured(*captured[i], f->captured + i);
  f->edit = buffers.score_callback.edit;
  f->edit_gradient = buffers.score_callback.gradient;
  f->user_data = buffers.score_callback.user_data;
  set_view(buffers.block_mask, &f->blocks);
  f->block_size_q = params.block_size_q;
  f->block_size_kv = params.block_size_kv;
}

}  // namespace

void make_problem(const AttentionParams& params, const Buffers& buffers, Problem* problem,
                  Functions* functions) noexcept {
  Problem& p = *problem;
  p.batch = params.batch;
  p.num_heads_q = params.num_heads_q;
  p.num_heads_kv = params.num_heads_kv;
  p.group_size = params.num_heads_kv > 0 ? params.num_heads_q / params.num_heads_kv : 1;
  p.seqlen_q = params.seqlen_q;
  p.seqlen_kv = params.seqlen_kv;
  p.total_q = params.total_q;
  p.total_kv = params.total_kv;
  p.head_dim_qk = params.head_dim_qk;
  p.head_dim_v = params.head_dim_v;

  const RowStarts queries = starts_of(buffers.cu_seqlens_q),
                  keys = starts_of(buffers.cu_seqlens_kv);
  set_rows(buffers.q, queries, &p.q);
  set_rows(buffers.k, keys, &p.k);
  set_rows(buffers.v, keys, &p.v);
  set_rows(buffers.out, queries, &p.out);
  set_row_numbers(buffers.lse, queries, &p.lse);
  set_row_numbers(buffers.saved_stats, queries, &p.stats);
  set_view(buffers.scores_out, &p.scores);
  set_view(buffers.out_amax, &p.out_amax);
  set_view(buffers.attn_mask, &p.mask);
  set_view(buffers.attn_bias, &p.bias);
  set_view(buffers.tree_mask, &p.tree);
  if (p.tree.present) p.tree_keys = buffers.tree_mask.shape[2];
  set_slopes(buffers.alibi_slopes, &p.slopes);
  set_view(buffers.sinks, &p.sinks);
  set_positions(buffers.segment_ids_q, queries, &p.segments_q);
  set_positions(buffers.segment_ids_kv, keys, &p.segments_kv);
  set_view(buffers.seqlens_q, &p.lens_q);
  set_view(buffers.seqlens_kv, &p.lens_kv);
  set_view(buffers.cache_leftpad, &p.leftpads);
  set_view(buffers.diagonal_offsets, &p.offsets);
  set_view(buffers.cache_batch_idx, &p.cache_entries);
  set_rows(buffers.scales_k, keys, &p.scales_k);
  set_rows(buffers.scales_v, keys, &p.scales_v);
  set_view(buffers.channel_scales_k, &p.channel_scales_k);
  set_rows(buffers.scales_q, queries, &p.scales_q);
  const ScaleBlock block = block_of(scale_layout_of(params.features));
  p.scale_columns = block.columns;
  p.scale_rows_log2 = std::countr_zero(static_cast<std::uint64_t>(block.rows));
  p.scales_k_of_rows = has_scale_a_row(buffers.scales_k, buffers.k);
  p.scales_v_of_rows = has_scale_a_row(buffers.scales_v, buffers.v);
  set_view(buffers.k_new, &p.k_new);
  set_view(buffers.v_new, &p.v_new);
  if (p.k_new.present) p.seqlen_new = buffers.k_new.shape[2];
  set_view(buffers.rotary_cos, &p.rotary_cos);
  set_view(buffers.rotary_sin, &p.rotary_sin);
  if (buffers.positions.present()) set_positions(buffers.positions, queries, &p.positions);
  p.rotary_half = params.rotary_dim / 2;
  p.rotary_interleaved = params.features.has(Feature::kRotaryInterleaved);
  p.hadamard = params.features.has(Feature::kHadamard);
  if (params.features.has(Feature::kQuantizedProbs)) p.probs_type = p.q.type;
  set_pages(buffers.page_table, params.page_size, &p.pages);

  set_descale(buffers.descale_q, &p.descale_q);
  set_descale(buffers.descale_k, &p.descale_k);
  set_descale(buffers.descale_v, &p.descale_v);

  if (functions != nullptr && has_functions(params)) {
    set_functions(params, buffers, functions);
    p.functions = functions;
    p.edits_by_function = functions->score.steps != nullptr || functions->edit != nullptr;
    p.masks_by_function = functions->mask.steps != nullptr;
  }
  p.diagonal = diagonal_of(params.diagonal);
  p.scores_stage =
      p.scores.present ? static_cast<ScoresStage>(params.scores_kind) : ScoresStage::kNone;
  p.diagonal_offset = buffers.diagonal_offset;
  p.window_left = params.window_left;
  p.window_right = params.window_right;
  // Any finite double is a scale or a cap; the arithmetic holds its own type's range.
  const bool f64 = params.dtype_q == Dtype::kF64;
  const double max = f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const double min = f64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  p.softmax_scale = std::clamp(params.softmax_scale, -max, max);
  p.softcap = params.softcap > 0.0 ? std::clamp(params.softcap, min, max) : 0.0;
  // What is measured in natural units (a bias, a sink, scores shown) needs scores in them.
  p.prescale_scores = p.softcap > 0.0 || p.slopes.present || p.bias.present || p.sinks.present ||
                      p.scores.present || p.edits_by_function ||
                      std::abs(p.softmax_scale) < kMinFactor;
  p.score_unit = p.prescale_scores ? 1.0 : std::abs(p.softmax_scale);
  p.caps_scores = p.softcap > 0.0;
  p.negates_scores = p.softmax_scale < 0.0 && !p.prescale_scores;
  p.softmax_scale_f32 = static_cast<float>(p.softmax_scale);
  p.softcap_f32 = static_cast<float>(p.softcap);
  p.exp2_scale = std::min(p.score_unit * std::numbers::log2e, max);
  p.dropout = semantics::make_dropout(params.dropout_p, buffers.rng_seed, buffers.rng_offset);
  const DropoutOrigin& origin = buffers.dropout_origin;
  semantics::begin_dropout_at(&p.dropout, origin.position, origin.key, origin.head, origin.heads);
}

std::int64_t rotated_queries_bytes(const AttentionParams& params) noexcept {
  if (!params.features.has(Feature::kRotary) && !params.features.has(Feature::kHadamard)) return 0;
  const bool packed = params.features.has(Feature::kPacked);
  const std::int64_t rows = packed ? params.total_q : saturating_mul(params.batch, params.seqlen_q);
  const std::int64_t row = saturating_mul(params.num_heads_q, params.head_dim_qk);
  const std::int64_t bytes = saturating_mul(saturating_mul(rows, row), size_of(params.dtype_q));
  return round_up(bytes, 64);
}

View rotated_view(const Problem& p, void* data) noexcept {
  View view = p.q;
  const std::int64_t rows = p.q.starts.data != nullptr ? p.total_q : p.seqlen_q;
  view.data = static_cast<char*>(data);
  view.stride[3] = 1;
  view.stride[1] = p.head_dim_qk;
  view.stride[2] = p.num_heads_q * view.stride[1];
  view.stride[0] = rows * view.stride[2];
  return view;
}

void make_grad_problem(const AttentionParams& params, const Buffers& buffers,
                       const GradBuffers& gradients, GradProblem* problem,
                       Functions* functions) noexcept {
  GradProblem& g = *problem;
  make_problem(params, buffers, &g.problem, functions);
  // Gradients are of scores in natural units.
  g.problem.prescale_scores = true;
  g.problem.negates_scores = false;
  g.problem.score_unit = 1.0;
  g.problem.exp2_scale = std::numbers::log2e;
  const RowStarts queries = starts_of(buffers.cu_seqlens_q),
                  keys = starts_of(buffers.cu_seqlens_kv);
  set_row_numbers(gradients.saved.stats, queries, &g.saved);
  g.saved_is_lse = gradients.saved.kind == SavedContext::Kind::kLse;
  set_rows(gradients.d_out, queries, &g.d_out);
  set_row_numbers(gradients.delta, queries, &g.delta);
  set_row_numbers(gradients.d_lse, queries, &g.d_lse);
  set_rows(gradients.d_q, queries, &g.d_q);
  set_rows(gradients.d_k, keys, &g.d_k);
  set_rows(gradients.d_v, keys, &g.d_v);
  set_descale(gradients.descale_d_out, &g.descale_d_out);
  set_rows(gradients.scales_d_out, queries, &g.scales_d_out);
  set_view(gradients.gradient_scales, &g.gradient_scales);
  set_view(gradients.gradient_amax, &g.gradient_amax);
  set_view(gradients.d_bias, &g.d_bias);
  set_view(gradients.d_sinks, &g.d_sinks);
  const TensorView* const captured[] = {&gradients.d_captured0, &gradients.d_captured1,
                                        &gradients.d_captured2, &gradients.d_captured3,
                                        &gradients.d_captured4, &gradients.d_captured5,
                                        &gradients.d_captured6, &gradients.d_captured7};
  for (int i = 0; i < kMaxCapturedViews && g.problem.functions != nullptr; ++i) {
    set_captured(*captured[i], functions->d_captured + i);
  }
  for (int i = 0; i < 4; ++i) g.bias_is_full[i] = (params.bias_dims >> i & 1) != 0;
}

}  // namespace regard::problem

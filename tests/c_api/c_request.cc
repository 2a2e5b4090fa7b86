#include "c_request.h"

#include <cstdint>

namespace regard::test {

regard_dtype c_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return {REGARD_DTYPE_FLOAT, 64, 1};
    case Dtype::kF32: return {REGARD_DTYPE_FLOAT, 32, 1};
    case Dtype::kBf16: return {REGARD_DTYPE_BFLOAT, 16, 1};
    case Dtype::kF16: return {REGARD_DTYPE_FLOAT, 16, 1};
    case Dtype::kF8E4M3: return {REGARD_DTYPE_FLOAT8_E4M3FN, 8, 1};
    case Dtype::kF8E5M2: return {REGARD_DTYPE_FLOAT8_E5M2, 8, 1};
    case Dtype::kI8: return {REGARD_DTYPE_INT, 8, 1};
    case Dtype::kU8: return {REGARD_DTYPE_UINT, 8, 1};
    case Dtype::kBool: return {REGARD_DTYPE_BOOL, 8, 1};
    case Dtype::kI32: return {REGARD_DTYPE_INT, 32, 1};
    case Dtype::kI64: return {REGARD_DTYPE_INT, 64, 1};
  }
  return {};
}

regard_tensor* CTensors::make(const TensorView& view) {
  if (!view.present()) return nullptr;
  Entry& entry = entries_.emplace_back();
  entry.view = view;
  entry.tensor = regard_make_tensor(view.data, c_dtype(view.dtype), view.rank, entry.view.shape);
  entry.tensor.strides = entry.view.strides;
  entry.tensor.device = {
      view.device.type == DeviceType::kCpu ? REGARD_DEVICE_CPU : REGARD_DEVICE_CUDA,
      view.device.index};
  return &entry.tensor;
}

CRequest::CRequest(const AttentionRequest& from) : options_(from.options) {
  regard_request& r = request;
  r.q = tensors_.make(from.q);
  r.k = tensors_.make(from.k);
  r.v = tensors_.make(from.v);
  r.out = tensors_.make(from.out);
  r.lse = tensors_.make(from.lse);
  r.saved_stats = tensors_.make(from.saved_stats);
  r.scores_out = tensors_.make(from.scores_out);
  r.attn_mask = tensors_.make(from.attn_mask);
  r.attn_bias = tensors_.make(from.attn_bias);
  r.alibi_slopes = tensors_.make(from.alibi_slopes);
  r.sinks = tensors_.make(from.sinks);
  r.segment_ids_q = tensors_.make(from.segment_ids_q);
  r.segment_ids_kv = tensors_.make(from.segment_ids_kv);
  r.seqlens_q = tensors_.make(from.seqlens_q);
  r.seqlens_kv = tensors_.make(from.seqlens_kv);
  r.diagonal_offsets = tensors_.make(from.diagonal_offsets);
  r.cu_seqlens_q = tensors_.make(from.cu_seqlens_q);
  r.cu_seqlens_kv = tensors_.make(from.cu_seqlens_kv);
  r.page_table = tensors_.make(from.page_table);
  r.block_mask = tensors_.make(from.block_mask);
  r.k_new = tensors_.make(from.k_new);
  r.v_new = tensors_.make(from.v_new);
  r.rotary_cos = tensors_.make(from.rotary_cos);
  r.rotary_sin = tensors_.make(from.rotary_sin);
  r.cache_batch_idx = tensors_.make(from.cache_batch_idx);
  r.descale_q = tensors_.make(from.descale_q);
  r.descale_k = tensors_.make(from.descale_k);
  r.descale_v = tensors_.make(from.descale_v);
  r.diagonal_offset = from.diagonal_offset;
  r.rng_seed = from.rng_seed;
  r.rng_offset = from.rng_offset;
  if (options_.softmax_scale) r.softmax_scale = &*options_.softmax_scale;
  r.window_left = &options_.window_left;
  r.window_right = &options_.window_right;
  r.softcap = options_.softcap;
  r.dropout_p = options_.dropout_p;
  r.page_size = options_.page_size;
  r.diagonal = static_cast<regard_diagonal>(options_.diagonal);
  r.scores_kind = static_cast<regard_scores_kind>(options_.scores_kind);
  r.is_causal = options_.is_causal ? 1 : 0;
  r.needs_grad = options_.needs_grad ? 1 : 0;
  r.d_lse = options_.d_lse ? 1 : 0;
  r.delta = options_.delta ? 1 : 0;
}

CGradients::CGradients(const GradBuffers& from) {
  regard_gradients& g = gradients;
  g.saved = tensors_.make(from.saved.stats);
  g.d_out = tensors_.make(from.d_out);
  g.delta = tensors_.make(from.delta);
  g.d_lse = tensors_.make(from.d_lse);
  g.d_q = tensors_.make(from.d_q);
  g.d_k = tensors_.make(from.d_k);
  g.d_v = tensors_.make(from.d_v);
  g.d_bias = tensors_.make(from.d_bias);
  g.d_sinks = tensors_.make(from.d_sinks);
  g.rng_seed = from.saved.rng_seed;
  g.rng_offset = from.saved.rng_offset;
  g.saved_kind = static_cast<regard_saved_kind>(from.saved.kind);
}

}  // namespace regard::test

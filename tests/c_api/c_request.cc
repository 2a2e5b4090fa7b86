#include "c_request.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "regard/tensors.h"

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
    case Dtype::kU4: return {REGARD_DTYPE_UINT, 4, 1};
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
  for (const TensorSpec& spec : kTensors) {
    if (spec.buffer != nullptr) r.*spec.c_request = tensors_.make(from.*spec.buffer);
  }
  r.diagonal_offset = from.diagonal_offset;
  r.max_seqlen_q = from.max_seqlen_q;
  r.max_seqlen_kv = from.max_seqlen_kv;
  r.rng_seed = from.rng_seed;
  r.rng_offset = from.rng_offset;
  const DropoutOrigin& origin = from.dropout_origin;
  const std::int64_t numbers[] = {origin.position, origin.key, origin.head, origin.heads};
  std::copy(std::begin(numbers), std::end(numbers), r.dropout_origin);
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
  r.rotary_interleaved = options_.rotary_interleaved ? 1 : 0;
  r.hadamard = options_.hadamard ? 1 : 0;
  if (!options_.score_function.empty()) r.score_function = options_.score_function.text().c_str();
  if (!options_.mask_function.empty()) r.mask_function = options_.mask_function.text().c_str();
  r.block_size_q = options_.block_size_q;
  r.block_size_kv = options_.block_size_kv;
  r.fp8_recipe = static_cast<regard_fp8_recipe>(options_.fp8_recipe);
  r.scale_layout = static_cast<regard_scale_layout>(options_.scale_layout);
  r.allow_future_scales = options_.allow_future_scales ? 1 : 0;
  r.quantize_probs = options_.quantize_probs ? 1 : 0;
  if (options_.dtype_d_out) {
    dtype_d_out_ = c_dtype(*options_.dtype_d_out);
    r.dtype_d_out = &dtype_d_out_;
  }
  if (options_.dtype_gradients) {
    dtype_gradients_ = c_dtype(*options_.dtype_gradients);
    r.dtype_gradients = &dtype_gradients_;
  }
  if (from.score_callback.edit == nullptr) return;
  callback_ = {from.score_callback.edit, from.score_callback.gradient,
               from.score_callback.user_data};
  r.score_callback = &callback_;
}

CGradients::CGradients(const GradBuffers& from) {
  regard_gradients& g = gradients;
  for (const TensorSpec& spec : kTensors) {
    if (spec.buffer == nullptr) g.*spec.c_gradient = tensors_.make(*spec.in(from));
  }
  g.rng_seed = from.saved.rng_seed;
  g.rng_offset = from.saved.rng_offset;
  g.saved_kind = static_cast<regard_saved_kind>(from.saved.kind);
}

}  // namespace regard::test

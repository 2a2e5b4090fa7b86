#include "tools/gpu_check/case_tensors.h"

#include "tools/gpu_check/numbers.h"

namespace regard::gpu_check {

CaseTensors::CaseTensors(DeviceMemory& memory, const AttentionParams& p, const CaseTensors* whole)
    : memory_(memory), whole_(whole) {
  using R = AttentionGradRequest;
  R& r = request_;
  r.q = input(&R::q, p.dtype_q, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk});
  r.k = input(&R::k, p.dtype_q, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk});
  r.v = input(&R::v, p.dtype_q, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v});
  r.out = output(p.dtype_out, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v});
  if (p.features.has(Feature::kLse)) {
    r.lse = output(Dtype::kF32, {p.batch, p.num_heads_q, p.seqlen_q});
  }
  if (p.features.has(Feature::kAttnBias)) {
    r.attn_bias = input(&R::attn_bias, p.dtype_q, {1, p.num_heads_q, p.seqlen_q, p.seqlen_kv});
  }
  if (p.features.has(Feature::kSinks)) r.sinks = input(&R::sinks, Dtype::kF32, {p.num_heads_q});
  if (p.features.has(Feature::kSeqlensKv)) add_lengths(p);
  if (p.features.has(Feature::kNeedsGrad)) add_gradients(p);
  r.options.softmax_scale = p.softmax_scale;
  if (p.features.has(Feature::kCausal)) {
    r.options.is_causal = true;
    r.options.diagonal =
        p.features.has(Feature::kDiagonalBottomRight) ? Diagonal::kBottomRight : Diagonal::kTopLeft;
  }
  r.options.needs_grad = p.features.has(Feature::kNeedsGrad);
}

void CaseTensors::add_gradients(const AttentionParams& p) {
  AttentionGradRequest& r = request_;
  r.saved.stats = r.lse;
  r.saved.kind = SavedContext::Kind::kLse;
  r.d_out = input(&AttentionGradRequest::d_out, p.dtype_q,
                  {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v});
  r.d_q = output(p.dtype_q, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk});
  r.d_k = output(p.dtype_q, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk});
  r.d_v = output(p.dtype_q, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v});
}

void CaseTensors::add_lengths(const AttentionParams& p) {
  std::vector<std::int32_t> lengths_q, lengths_kv;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    lengths_q.push_back(static_cast<std::int32_t>(b == 0 ? p.seqlen_q : p.seqlen_q * 3 / 4));
    lengths_kv.push_back(static_cast<std::int32_t>(b == 0 ? 0 : p.seqlen_kv * 3 / 4));
  }
  request_.seqlens_q = output(Dtype::kI32, {p.batch});
  request_.seqlens_kv = output(Dtype::kI32, {p.batch});
  if (!error_.empty()) return;
  const std::size_t bytes = lengths_q.size() * sizeof(std::int32_t);
  memory_.upload(request_.seqlens_q.data, lengths_q.data(), bytes);
  memory_.upload(request_.seqlens_kv.data, lengths_kv.data(), bytes);
}

TensorView CaseTensors::input(TensorView AttentionGradRequest::*tensor, Dtype dtype,
                              std::initializer_list<std::int64_t> shape) {
  if (whole_ != nullptr) {
    TensorView view = whole_->request_.*tensor;
    const std::int64_t skipped = (view.shape[0] - 1) * view.strides[0];
    view.data = static_cast<char*>(view.data) + skipped * static_cast<std::int64_t>(size_of(dtype));
    view.shape[0] = 1;
    return view;
  }
  const TensorView view = output(dtype, shape);
  upload_numbers(memory_, buffers_.back(),
                 static_cast<std::size_t>(view.num_elements()) * size_of(dtype), dtype);
  return view;
}

TensorView CaseTensors::output(Dtype dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = make_view(static_cast<void*>(nullptr), dtype, shape);
  const auto bytes = static_cast<std::size_t>(view.num_elements()) * size_of(dtype);
  buffers_.emplace_back(memory_, bytes);
  view.data = buffers_.back().data();
  view.device = memory_.device();
  if (view.data == nullptr) error_ = "the device has no memory left";
  return view;
}

}  // namespace regard::gpu_check

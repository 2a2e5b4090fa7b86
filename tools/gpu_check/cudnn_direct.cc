#include "tools/gpu_check/cudnn_direct.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace cudnn_frontend {
// The frontend takes every function of cuDNN from there. Weak: the static library brings its own,
// the shared one hides it.
__attribute__((weak)) void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace regard::gpu_check {
namespace {

namespace fe = cudnn_frontend;
using Dims = std::vector<std::int64_t>;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

class Direct {
 public:
  Direct(const AttentionParams& params, const AttentionGradRequest& request)
      : params_(params), request_(request) {}
  ~Direct() {
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  std::string build(bool backward, DeviceMemory& memory) {
    if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
    if (fe::cudnn_dlhandle == nullptr) return "libcudnn.so.9 is not found";
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS ||
        fe::detail::set_stream(handle_, static_cast<cudaStream_t>(memory.stream())) !=
            CUDNN_STATUS_SUCCESS) {
      return "cuDNN: no handle for the stream";
    }
    const bool is_half = params_.dtype_q == Dtype::kF16;
    graph_.set_io_data_type(is_half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    backward ? add_backward() : add_forward();
    fe::error_t error = graph_.build(handle_, {fe::HeurMode_t::A});
    std::int64_t bytes = 0;
    if (error.is_good()) error = graph_.get_workspace_size(bytes);
    if (error.is_bad()) return "cuDNN: " + error.get_message();
    workspace_bytes_ = bytes;
    workspace_ = std::make_unique<Buffer>(memory, static_cast<std::size_t>(bytes));
    return workspace_->data() != nullptr ? "" : "the device has no memory left";
  }

  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  std::string run() {
    fe::error_t error = graph_.execute(handle_, pack_, workspace_->data());
    return error.is_good() ? "" : "cuDNN: " + error.get_message();
  }

 private:
  // A view's extents and strides, and its memory at the next number. [B,H,S] is [B,H,S,1] there,
  // and [B] is [B,1,1,1].
  template <class Attributes>
  Attributes& describe(Attributes& attributes, const TensorView& view) {
    Dims dims(view.shape, view.shape + view.rank), strides(view.strides, view.strides + view.rank);
    dims.resize(4, 1);
    strides.resize(4, 1);
    const auto uid = static_cast<std::int64_t>(pack_.size() + 1);
    pack_[uid] = view.data;
    if (view.dtype == Dtype::kF32) attributes.set_data_type(fe::DataType_t::FLOAT);
    if (view.dtype == Dtype::kI32) attributes.set_data_type(fe::DataType_t::INT32);
    attributes.set_uid(uid).set_dim(dims).set_stride(strides);
    return attributes;
  }
  TensorPtr input(const TensorView& view) {
    fe::graph::Tensor_attributes attributes;
    return graph_.tensor(describe(attributes, view));
  }
  void output(const TensorPtr& tensor, const TensorView& view) {
    describe(*tensor, view).set_output(true);
  }

  template <class Attributes>
  Attributes attributes() {
    Attributes attributes;
    attributes.set_name("attention").set_attn_scale(static_cast<float>(params_.softmax_scale));
    if (params_.features.has(Feature::kCausal)) attributes.set_diagonal_band_right_bound(0);
    if (request_.attn_bias.present()) attributes.set_bias(input(request_.attn_bias));
    if (request_.seqlens_kv.present()) {
      attributes.set_padding_mask(true)
          .set_seq_len_q(input(request_.seqlens_q))
          .set_seq_len_kv(input(request_.seqlens_kv));
    }
    if (request_.sinks.present()) {
      TensorView sinks = request_.sinks;  // [Hq] is [1,Hq,1,1] there
      sinks = make_view(sinks.data, sinks.dtype, {1, sinks.shape[0], 1, 1});
      attributes.set_sink_token(input(sinks));
    }
    return attributes;
  }
  void add_forward() {
    auto node = attributes<fe::graph::SDPA_attributes>();
    node.set_generate_stats(request_.lse.present());
    auto [out, stats] = graph_.sdpa(input(request_.q), input(request_.k), input(request_.v), node);
    output(out, request_.out);
    if (request_.lse.present()) output(stats, request_.lse);
  }
  void add_backward() {
    auto [d_q, d_k, d_v] =
        graph_.sdpa_backward(input(request_.q), input(request_.k), input(request_.v),
                             input(request_.out), input(request_.d_out), input(request_.lse),
                             attributes<fe::graph::SDPA_backward_attributes>());
    output(d_q, request_.d_q);
    output(d_k, request_.d_k);
    output(d_v, request_.d_v);
  }

  const AttentionParams& params_;
  const AttentionGradRequest& request_;
  cudnnHandle_t handle_ = nullptr;
  fe::graph::Graph graph_;
  std::unordered_map<std::int64_t, void*> pack_;
  std::unique_ptr<Buffer> workspace_;
  std::int64_t workspace_bytes_ = 0;
};

}  // namespace

DirectCall make_direct_cudnn(const AttentionParams& params, const AttentionGradRequest& request,
                             bool backward, DeviceMemory& memory) {
  const auto direct = std::make_shared<Direct>(params, request);
  DirectCall call;
  call.error = direct->build(backward, memory);
  call.workspace_bytes = direct->workspace_bytes();
  if (call.error.empty()) call.run = [direct] { return direct->run(); };
  return call;
}

}  // namespace regard::gpu_check

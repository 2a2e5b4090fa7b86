#include "tools/regard/run_gradients.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "oracle/number.h"

namespace regard::cli {
namespace {

/// A tensor of `of`'s shape, in the order in which the file stores tensors of rank 4
/// rows; without a shape for an absent one.
Expected<OwnedTensor> make_like(const TensorView& of, Dtype dtype, bool bshd, const char* name) {
  if (!of.present()) return OwnedTensor();
  const TensorView stored = bshd ? exchange_heads_and_rows(of) : of;
  return OwnedTensor::make(dtype, {stored.shape, stored.shape + stored.rank}, name);
}

/// Uniform in [-1, 1), by Knuth's linear congruential generator.
void fill_upstream(OwnedTensor* tensor) {
  auto* bytes = static_cast<unsigned char*>(tensor->bytes.data());
  const std::int64_t width = size_of(tensor->dtype);
  std::uint64_t state = 1;
  for (std::int64_t at = 0; at < tensor->bytes.size(); at += width) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double value = static_cast<double>(state >> 40) / static_cast<double>(1 << 23) - 1.0;
    oracle::encode(value, bytes + at, tensor->dtype);
  }
}

/// The file's tensor `name`, or an absent view.
Expected<TensorView> view_in_file(const RunInput& input, const char* name) {
  const safetensors::TensorEntry* entry = input.file.contents().find(name);
  if (entry == nullptr) return TensorView();
  return safetensors::view_of(*entry);
}

TensorView as_rows(const OwnedTensor& tensor, bool bshd) {
  if (tensor.shape.empty()) return {};
  return bshd ? exchange_heads_and_rows(tensor.view()) : tensor.view();
}

}  // namespace

Expected<UpstreamGradients> load_upstream(const RunInput& input) {
  UpstreamGradients upstream;
  Expected<TensorView> d_lse = view_in_file(input, "d_lse");
  if (!d_lse) return d_lse.status();
  upstream.d_lse = *d_lse;
  Expected<TensorView> d_out = view_in_file(input, "d_out");
  if (!d_out) return d_out.status();
  upstream.from_file = d_out->present();
  if (upstream.from_file) {
    if (d_out->rank != kMaxRank) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("[run] tensor 'd_out' is {}, expected rank 4: [B,{}]",
                                to_string(*d_out), input.bshd ? "S,H,D" : "H,S,D"));
    }
    upstream.d_out = input.bshd ? exchange_heads_and_rows(*d_out) : *d_out;
    return upstream;
  }
  Expected<RunOutputs> outputs = input.make_outputs();
  if (!outputs) return outputs.status();
  upstream.made = std::move(outputs->out);  // of its dtype, shape and order
  if (is_f8(input.request.q.dtype)) {
    Expected<OwnedTensor> d_out_made =
        OwnedTensor::make(input.c.params.dtype_d_out, upstream.made.shape, "d_out");
    if (!d_out_made) return d_out_made.status();
    upstream.made = *std::move(d_out_made);
  }
  fill_upstream(&upstream.made);
  upstream.d_out = as_rows(upstream.made, input.bshd);
  return upstream;
}

AttentionGradRequest grad_request(const RunInput& input, const UpstreamGradients& upstream,
                                  const RunOutputs& forward, const GradOutputs& outputs) {
  AttentionGradRequest request;
  static_cast<AttentionRequest&>(request) = input.with(forward);
  request.saved.stats = request.saved_stats;
  request.saved.kind = SavedContext::Kind::kStats;
  request.saved.rng_seed = request.rng_seed;
  request.saved.rng_offset = request.rng_offset;
  request.d_out = upstream.d_out;
  request.d_lse = upstream.d_lse;
  request.d_q = as_rows(outputs.d_q, input.bshd);
  request.d_k = as_rows(outputs.d_k, input.bshd);
  request.d_v = as_rows(outputs.d_v, input.bshd);
  request.d_bias = as_rows(outputs.d_bias, false);
  request.d_sinks = as_rows(outputs.d_sinks, false);
  return request;
}

Expected<GradOutputs> make_grad_outputs(const RunInput& input) {
  GradOutputs outputs;
  const struct {
    OwnedTensor GradOutputs::*gradient;
    const TensorView& of;
    bool bshd;
    const char* name;
  } wanted[] = {{&GradOutputs::d_q, input.request.q, input.bshd, "d_q"},
                {&GradOutputs::d_k, input.request.k, input.bshd, "d_k"},
                {&GradOutputs::d_v, input.request.v, input.bshd, "d_v"},
                {&GradOutputs::d_bias, input.request.attn_bias, false, "d_bias"},
                {&GradOutputs::d_sinks, input.request.sinks, false, "d_sinks"}};
  for (const auto& [gradient, of, bshd, name] : wanted) {
    const bool is_row =
        &of == &input.request.q || &of == &input.request.k || &of == &input.request.v;
    const Dtype dtype =
        is_row && is_f8(input.request.q.dtype) ? input.c.params.dtype_gradients : of.dtype;
    Expected<OwnedTensor> tensor = make_like(of, dtype, bshd, name);
    if (!tensor) return tensor.status();
    outputs.*gradient = *std::move(tensor);
  }
  return outputs;
}

Expected<GradRun> run_backward(Context& context, const RunInput& input,
                               const UpstreamGradients& upstream, const BackendRun& run,
                               const Policy& policy, const Timing& timing) {
  const Expected<Plan> made = plan(context, input.c.params, narrowed_to(policy, run.backend));
  if (!made) return made.status();
  GradRun back;
  back.kernel = made->backward_kernel();
  back.workspace_bytes = made->backward_workspace_bytes();
  Expected<GradOutputs> outputs = make_grad_outputs(input);
  if (!outputs) return outputs.status();
  back.outputs = *std::move(outputs);
  Expected<OwnedBytes> workspace = OwnedBytes::make(back.workspace_bytes, "the workspace");
  if (!workspace) return workspace.status();
  Launch launch;
  launch.executor = &context.executor();
  launch.workspace = {workspace->data(), static_cast<std::size_t>(workspace->size())};
  const AttentionGradRequest request = grad_request(input, upstream, run.outputs, back.outputs);
  Expected<TimedRuns> timed =
      time_runs(timing, [&] { return execute_backward(*made, request, request, launch); });
  if (!timed) return timed.status();
  static_cast<TimedRuns&>(back) = *std::move(timed);
  return back;
}

}  // namespace regard::cli

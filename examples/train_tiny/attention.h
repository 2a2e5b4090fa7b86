#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "examples/train_tiny/layers.h"
#include "regard/attention.h"

// Causal self-attention with dropout, by regard: planned once for the pair of forward and backward,
// executed in every layer of every step.

namespace train {

struct Sizes {
  std::int64_t batch = 8, context = 64, heads = 4, head_dim = 16, layers = 2, vocabulary = 0;
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t rows() const { return batch * context; }
};

inline constexpr double kDropout = 0.1;

/// One layer's tensors: qkv [rows][3 width] holds q, k and v of a position side by side, and the
/// views below take them out of it without a copy.
struct AttentionTensors {
  float* qkv;
  float* out;            // [rows][width]
  float* saved;          // [batch][heads][context][2]
  std::uint64_t stream;  // which dropout mask: another in each step and layer
};

class Attention {
 public:
  /// A message names what is wrong.
  static regard::Expected<Attention> make(regard::Context& context, const Sizes& sizes,
                                          const regard::Policy& policy) {
    Attention attention(context, sizes);
    Floats qkv = zeros(sizes.rows() * 3 * sizes.width()), out = zeros(sizes.rows() * sizes.width());
    Floats saved = zeros(sizes.batch * sizes.heads * sizes.context * 2);
    const auto request = attention.request({qkv.data(), out.data(), saved.data(), 0});
    const regard::Expected<regard::AttentionParams> params = regard::describe(request);
    if (!params) return params.status();
    regard::Expected<regard::Plan> plan = regard::plan(context, *params, policy);
    if (!plan) return plan.status();
    attention.plan_ = *plan;
    const std::int64_t bytes = std::max(plan->workspace_bytes(), plan->backward_workspace_bytes());
    attention.workspace_.resize(static_cast<std::size_t>(bytes) + 64);
    return attention;
  }

  const regard::Plan& plan() const { return plan_; }

  regard::Status forward(const AttentionTensors& tensors) {
    return regard::execute(plan_, request(tensors), launch());
  }

  /// d_qkv as qkv lies.
  regard::Status backward(const AttentionTensors& tensors, const float* d_out, float* d_qkv) {
    const regard::AttentionRequest forward = request(tensors);
    regard::GradBuffers gradients;
    gradients.saved.stats = forward.saved_stats;
    gradients.saved.kind = regard::SavedContext::Kind::kStats;
    gradients.saved.rng_seed = forward.rng_seed;
    gradients.saved.rng_offset = forward.rng_offset;
    gradients.d_out = rows_view(d_out, sizes_.width());
    gradients.d_q = rows_view(d_qkv, 3 * sizes_.width());
    gradients.d_k = rows_view(d_qkv + sizes_.width(), 3 * sizes_.width());
    gradients.d_v = rows_view(d_qkv + 2 * sizes_.width(), 3 * sizes_.width());
    return regard::execute_backward(plan_, forward, gradients, launch());
  }

 private:
  Attention(regard::Context& context, const Sizes& sizes) : context_(&context), sizes_(sizes) {}

  /// [batch,heads,context,head_dim] of rows that are `stride` floats apart.
  template <class Float>  // const where the rows are only read
  regard::TensorView rows_view(Float* data, std::int64_t stride) const {
    return regard::make_view(data, {sizes_.batch, sizes_.heads, sizes_.context, sizes_.head_dim},
                             {sizes_.context * stride, sizes_.head_dim, stride, 1});
  }

  regard::AttentionRequest request(const AttentionTensors& t) const {
    regard::AttentionRequest request;
    request.q = rows_view(t.qkv, 3 * sizes_.width());
    request.k = rows_view(t.qkv + sizes_.width(), 3 * sizes_.width());
    request.v = rows_view(t.qkv + 2 * sizes_.width(), 3 * sizes_.width());
    request.out = rows_view(t.out, sizes_.width());
    request.saved_stats =
        regard::make_view(t.saved, {sizes_.batch, sizes_.heads, sizes_.context, 2});
    request.options.is_causal = true;
    request.options.needs_grad = true;
    request.options.dropout_p = kDropout;
    request.rng_seed = 1;
    request.rng_offset = t.stream;
    return request;
  }

  regard::Launch launch() {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace_.data());
    regard::Launch launch;
    launch.executor = &context_->executor();
    launch.workspace = {workspace_.data() + (64 - address % 64) % 64, workspace_.size() - 64};
    return launch;
  }

  regard::Context* context_;
  Sizes sizes_;
  regard::Plan plan_;
  std::vector<char> workspace_;  // of the greater of the two: they are never in use at once
};

}  // namespace train

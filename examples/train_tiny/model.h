#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "examples/train_tiny/attention.h"

// A decoder-only transformer over characters: embeddings, then layers of attention and an MLP, each
// after an RMSNorm and round it a residual, then a norm and a linear layer to the next character.

namespace train {

/// Where the parameters of a model lie in one block of floats; their gradients lie alike.
struct Weights {
  struct Layer {
    float *norm_attention, *qkv, *project, *norm_mlp, *up, *down;
  };
  float *tokens, *positions, *norm, *head;
  std::vector<Layer> layers;
  std::int64_t count = 0;

  Weights(const Sizes& s, float* block) {
    const auto take = [&](std::int64_t n) { return std::exchange(count, count + n) + block; };
    const std::int64_t w = s.width();
    tokens = take(s.vocabulary * w);
    positions = take(s.context * w);
    for (std::int64_t l = 0; l < s.layers; ++l) {
      // Braces evaluate their elements in order.
      layers.push_back(
          {take(w), take(w * 3 * w), take(w * w), take(w), take(w * 4 * w), take(4 * w * w)});
    }
    norm = take(w);
    head = take(w * s.vocabulary);
  }
};

/// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Uniform in [-1, 1).
  float uniform() { return static_cast<float>(next() >> 40) / 8388608.0f - 1.0f; }

 private:
  std::uint64_t state_;
};

class Model {
 public:
  Model(const Sizes& sizes, Attention attention, Threads threads)
      : sizes_(sizes),
        threads_(threads),
        attention_(std::move(attention)),
        parameters_(zeros(Weights(sizes, nullptr).count)),
        gradients_(parameters_.size()),
        weights_(sizes, parameters_.data()),
        d_weights_(sizes, gradients_.data()) {
    initialise();
    const std::int64_t rows = sizes.rows(), w = sizes.width();
    for (std::int64_t l = 0; l < sizes.layers; ++l) {
      layers_.push_back({zeros(rows * w), zeros(rows), zeros(rows * w), zeros(rows * 3 * w),
                         zeros(rows * w), zeros(sizes.batch * sizes.heads * sizes.context * 2),
                         zeros(rows * w), zeros(rows), zeros(rows * w), zeros(rows * 4 * w),
                         zeros(rows * 4 * w)});
    }
    last_ = normed_ = zeros(rows * w);
    inverse_ = zeros(rows);
    logits_ = zeros(rows * sizes.vocabulary);
  }
  Model(const Model&) = delete;  // weights_ points into parameters_
  Model& operator=(const Model&) = delete;

  Floats& parameters() { return parameters_; }
  const Floats& gradients() const { return gradients_; }

  /// The loss of a batch [batch][context]; fills gradients().
  regard::Expected<double> step(const std::vector<int>& inputs, const std::vector<int>& targets,
                                std::uint64_t step) {
    embed(inputs);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const regard::Status status = layer_forward(l, stream_of(step, l));
      if (!status.ok()) return status;
    }
    const std::int64_t rows = sizes_.rows();
    train::forward(threads_, final_norm(), last_, &normed_, &inverse_);
    train::forward(threads_, head(), normed_.data(), rows, logits_.data());
    const double loss = cross_entropy(threads_, targets, sizes_.vocabulary, &logits_);

    Floats d_normed = zeros(rows * sizes_.width()), d_x = d_normed;
    train::backward(threads_, head(),
                    {normed_.data(), logits_.data(), rows, d_normed.data(), d_weights_.head});
    train::backward(threads_, final_norm(), {last_, inverse_, d_normed, &d_x, d_weights_.norm});
    for (std::size_t l = layers_.size(); l-- > 0;) {
      const regard::Status status = layer_backward(l, stream_of(step, l), &d_x);
      if (!status.ok()) return status;
    }
    embed_backward(inputs, d_x);
    return loss;
  }

 private:
  /// What one layer keeps of its forward for its backward.
  struct Layer {
    Floats x, inverse_attention, normed_attention, qkv, attended, saved;
    Floats middle, inverse_mlp, normed_mlp, up, activated;
  };

  std::uint64_t stream_of(std::uint64_t step, std::size_t l) const {
    return step * layers_.size() + l;
  }
  Norm final_norm() const { return {weights_.norm, sizes_.width()}; }
  Linear head() const { return {weights_.head, sizes_.width(), sizes_.vocabulary}; }
  Norm norm_attention(std::size_t l) const {
    return {weights_.layers[l].norm_attention, sizes_.width()};
  }
  Norm norm_mlp(std::size_t l) const { return {weights_.layers[l].norm_mlp, sizes_.width()}; }
  Linear qkv(std::size_t l) const {
    return {weights_.layers[l].qkv, sizes_.width(), 3 * sizes_.width()};
  }
  Linear project(std::size_t l) const {
    return {weights_.layers[l].project, sizes_.width(), sizes_.width()};
  }
  Linear up(std::size_t l) const {
    return {weights_.layers[l].up, sizes_.width(), 4 * sizes_.width()};
  }
  Linear down(std::size_t l) const {
    return {weights_.layers[l].down, 4 * sizes_.width(), sizes_.width()};
  }

  /// Gains of 1, linear layers of deviation 1/sqrt(inputs), smaller where they add to a residual or
  /// give logits: the first loss is then close to that of guessing.
  void initialise() {
    Random random(7);
    const auto fill = [&](float* to, std::int64_t count, float deviation) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = random.uniform() * deviation * 1.7320508f;
    };
    const std::int64_t w = sizes_.width();
    const float one = 1.0f / std::sqrt(static_cast<float>(w));
    fill(weights_.tokens, sizes_.vocabulary * w, 0.5f);
    fill(weights_.positions, sizes_.context * w, 0.25f);
    std::fill_n(weights_.norm, w, 1.0f);
    fill(weights_.head, w * sizes_.vocabulary, 0.1f * one);
    for (const Weights::Layer& layer : weights_.layers) {
      std::fill_n(layer.norm_attention, w, 1.0f);
      std::fill_n(layer.norm_mlp, w, 1.0f);
      fill(layer.qkv, w * 3 * w, one);
      fill(layer.project, w * w, 0.5f * one);
      fill(layer.up, w * 4 * w, one);
      fill(layer.down, 4 * w * w, 0.25f * one);
    }
  }

  /// Where layer l's result goes: the next layer's x.
  Floats& after(std::size_t l) { return l + 1 < layers_.size() ? layers_[l + 1].x : last_; }

  void embed(const std::vector<int>& inputs) {
    const std::int64_t w = sizes_.width();
    Floats& x = layers_.front().x;
    for (std::int64_t r = 0; r < sizes_.rows(); ++r) {
      const float* const token = weights_.tokens + inputs[static_cast<std::size_t>(r)] * w;
      const float* const position = weights_.positions + r % sizes_.context * w;
      for (std::int64_t c = 0; c < w; ++c) {
        x[static_cast<std::size_t>(r * w + c)] = token[c] + position[c];
      }
    }
  }

  void embed_backward(const std::vector<int>& inputs, const Floats& d_x) {
    const std::int64_t w = sizes_.width();
    std::fill_n(d_weights_.tokens, sizes_.vocabulary * w, 0.0f);
    std::fill_n(d_weights_.positions, sizes_.context * w, 0.0f);
    for (std::int64_t r = 0; r < sizes_.rows(); ++r) {
      float* const token = d_weights_.tokens + inputs[static_cast<std::size_t>(r)] * w;
      float* const position = d_weights_.positions + r % sizes_.context * w;
      for (std::int64_t c = 0; c < w; ++c) {
        token[c] += d_x[static_cast<std::size_t>(r * w + c)];
        position[c] += d_x[static_cast<std::size_t>(r * w + c)];
      }
    }
  }

  AttentionTensors tensors(std::size_t l, std::uint64_t stream) {
    Layer& layer = layers_[l];
    return {layer.qkv.data(), layer.attended.data(), layer.saved.data(), stream};
  }

  regard::Status layer_forward(std::size_t l, std::uint64_t stream) {
    Layer& a = layers_[l];
    const std::int64_t rows = sizes_.rows();
    train::forward(threads_, norm_attention(l), a.x, &a.normed_attention, &a.inverse_attention);
    train::forward(threads_, qkv(l), a.normed_attention.data(), rows, a.qkv.data());
    const regard::Status status = attention_.forward(tensors(l, stream));
    if (!status.ok()) return status;
    a.middle = a.x;
    train::forward(threads_, project(l), a.attended.data(), rows, a.middle.data(), true);
    train::forward(threads_, norm_mlp(l), a.middle, &a.normed_mlp, &a.inverse_mlp);
    train::forward(threads_, up(l), a.normed_mlp.data(), rows, a.up.data());
    silu(threads_, a.up, &a.activated);
    after(l) = a.middle;
    train::forward(threads_, down(l), a.activated.data(), rows, after(l).data(), true);
    return {};
  }

  /// d_x: the gradient of the layer's result, then that of its x.
  regard::Status layer_backward(std::size_t l, std::uint64_t stream, Floats* d_x) {
    Layer& a = layers_[l];
    const Weights::Layer& d = d_weights_.layers[l];
    const std::int64_t rows = sizes_.rows(), w = sizes_.width();
    Floats d_hidden = zeros(rows * 4 * w), d_normed = zeros(rows * w), d_qkv = zeros(rows * 3 * w);
    train::backward(threads_, down(l),
                    {a.activated.data(), d_x->data(), rows, d_hidden.data(), d.down});
    silu_backward(threads_, a.up, &d_hidden);
    train::backward(threads_, up(l),
                    {a.normed_mlp.data(), d_hidden.data(), rows, d_normed.data(), d.up});
    train::backward(threads_, norm_mlp(l), {a.middle, a.inverse_mlp, d_normed, d_x, d.norm_mlp});

    Floats& d_attended = d_normed;
    train::backward(threads_, project(l),
                    {a.attended.data(), d_x->data(), rows, d_attended.data(), d.project});
    const regard::Status status =
        attention_.backward(tensors(l, stream), d_attended.data(), d_qkv.data());
    if (!status.ok()) return status;
    train::backward(threads_, qkv(l),
                    {a.normed_attention.data(), d_qkv.data(), rows, d_normed.data(), d.qkv});
    train::backward(threads_, norm_attention(l),
                    {a.x, a.inverse_attention, d_normed, d_x, d.norm_attention});
    return {};
  }

  Sizes sizes_;
  Threads threads_;
  Attention attention_;
  Floats parameters_, gradients_;
  Weights weights_, d_weights_;
  std::vector<Layer> layers_;
  Floats last_, normed_, inverse_, logits_;
};

}  // namespace train

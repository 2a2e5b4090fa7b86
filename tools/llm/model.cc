#include "tools/llm/model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tools/llm/messages.h"
#include "tools/llm/rows.h"

namespace llm {
namespace {

using regard::Dtype;
using regard::Expected;
using regard::Status;

template <class T>
void reserve_elements(std::vector<T>* memory, std::int64_t elements) {
  if (static_cast<std::int64_t>(memory->size()) < elements) {
    memory->resize(static_cast<std::size_t>(elements));
  }
}

std::byte* offset(std::vector<std::byte>& memory, std::int64_t elements, Dtype dtype) {
  return memory.data() + elements * regard::size_of(dtype);
}

}  // namespace

Expected<Model> Model::load(const GgufContents& file, const ModelOptions& options) {
  Model model;
  const auto config = read_model_config(file);
  if (!config) return config.status();
  model.config_ = *config;
  model.dtype_ = options.weights;
  model.engine_ = std::make_unique<MatrixEngine>();
  auto weights = load_weights(file, *config, *model.engine_, options.weights);
  if (!weights) return weights.status();
  model.weights_ = *std::move(weights);
  model.attention_ = std::make_unique<Attention>(*config, model.weights_.rotary_scale,
                                                 options.policy, options.threads);
  return model;
}

Expected<KvCache> Model::make_cache(const CacheOptions& options) const {
  return KvCache::make(config_.layers, config_.heads_kv, config_.head_dim, options);
}

Status Model::prepare(const std::string& phase, std::int64_t batch, std::int64_t rows,
                      KvCache& cache) {
  reserve(batch * rows, cache.options().dtype);
  return attention_->prepare(phase, step_rows(batch, rows, cache.options().dtype), cache);
}

void Model::reserve(std::int64_t rows, Dtype cache) {
  const ModelConfig& c = config_;
  const std::int64_t qkv = c.q_width() + 2 * c.kv_width();
  const std::int64_t size = regard::size_of(dtype_);
  const std::int64_t row_size = regard::size_of(Attention::dtype_of_rows(cache, dtype_));
  reserve_elements(&buffers_.residual, rows * c.width);
  reserve_elements(&buffers_.qkv, rows * qkv);
  reserve_elements(&buffers_.product, rows * c.width);
  reserve_elements(&buffers_.gate_up, rows * 2 * c.ffn_width);
  reserve_elements(&buffers_.normed, rows * c.width * size);
  reserve_elements(&buffers_.attention_rows, rows * qkv * row_size);
  reserve_elements(&buffers_.attention_out, rows * c.q_width() * row_size);
  reserve_elements(&buffers_.attended, rows * c.q_width() * size);
  reserve_elements(&buffers_.activated, rows * c.ffn_width * size);
}

StepRows Model::step_rows(std::int64_t batch, std::int64_t rows, Dtype cache) {
  const ModelConfig& c = config_;
  StepRows made{batch, rows, c.q_width() + 2 * c.kv_width()};
  made.dtype = Attention::dtype_of_rows(cache, dtype_);
  made.q = buffers_.attention_rows.data();
  made.k = offset(buffers_.attention_rows, c.q_width(), made.dtype);
  made.v = offset(buffers_.attention_rows, c.q_width() + c.kv_width(), made.dtype);
  made.out = buffers_.attention_out.data();
  return made;
}

void Model::embed(std::span<const std::int32_t> tokens) {
  const ScopedTimer timer(profile_, Operation::kEmbedding);
  float* row = buffers_.residual.data();
  for (const std::int32_t token : tokens) {
    dequantize(weights_.embedding, token, 1, row);
    row += config_.width;
  }
}

Status Model::check_step(std::span<const std::int32_t> tokens,
                         std::span<const std::int32_t> sequences, const KvCache& cache) const {
  if (sequences.empty() || tokens.empty() || tokens.size() % sequences.size() != 0) {
    return invalid("forward", std::to_string(tokens.size()) + " tokens of " +
                                  std::to_string(sequences.size()) +
                                  " sequences, expected as many of each and at least one");
  }
  const auto rows = static_cast<std::int64_t>(tokens.size() / sequences.size());
  for (const std::int32_t sequence : sequences) {
    if (rows <= cache.capacity() - cache.length(sequence)) continue;
    return invalid("forward", std::to_string(rows) + " tokens for a sequence of " +
                                  std::to_string(cache.length(sequence)) +
                                  ", expected at most the capacity, " +
                                  std::to_string(cache.capacity()));
  }
  return check_tokens(tokens);
}

Status Model::check_tokens(std::span<const std::int32_t> tokens) const {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < config_.vocab) continue;
    return invalid("forward", "token (" + std::to_string(token) + ") must be 0 to " +
                                  std::to_string(config_.vocab - 1));
  }
  return Status();
}

Status Model::forward(const std::string& phase, std::span<const std::int32_t> tokens,
                      std::span<const std::int32_t> sequences, KvCache& cache,
                      regard::Interrupt* interrupt) {
  if (Status status = check_step(tokens, sequences, cache); !status.ok()) return status;
  const auto batch = static_cast<std::int64_t>(sequences.size());
  const std::int64_t rows = static_cast<std::int64_t>(tokens.size()) / batch;
  cache.begin_step(sequences, rows);
  const auto attend = [&](std::int64_t layer, const StepRows& step) {
    return attention_->run(phase, layer, step, cache, interrupt);
  };
  if (Status s = run_layers(tokens, batch, cache.options().dtype, attend); !s.ok()) return s;
  cache.end_step(sequences, rows);
  return Status();
}

Status Model::run_layers(std::span<const std::int32_t> tokens, std::int64_t batch, Dtype cache,
                         const Attend& attend) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  reserve(std::max<std::int64_t>(count, 1), cache);
  embed(tokens);
  const StepRows step = step_rows(batch, count / batch, cache);
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    if (Status s = run_attention(layer, step, attend); !s.ok()) return s;
    feed_forward(weights_.layers[static_cast<std::size_t>(layer)], count);
  }
  return Status();
}

Status Model::run_attention(std::int64_t layer, const StepRows& step, const Attend& attend) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int64_t rows = step.batch * step.rows;
  {
    const ScopedTimer timer(profile_, Operation::kNorms);
    rms_norm(buffers_.residual.data(), weights.attention_norm.data(), config_.norm_epsilon, rows,
             config_.width, dtype_, buffers_.normed.data());
  }
  {
    const ScopedTimer timer(profile_, Operation::kProducts);
    weights.qkv.run(buffers_.normed.data(), rows, buffers_.qkv.data());
  }
  {
    const ScopedTimer timer(profile_, Operation::kAttention);
    convert_rows({buffers_.qkv.data(), Dtype::kF32, step.stride}, {step.q, step.dtype, step.stride},
                 rows, step.stride);
    if (Status status = attend(layer, step); !status.ok()) return status;
    convert_rows({step.out, step.dtype, config_.q_width()},
                 {buffers_.attended.data(), dtype_, config_.q_width()}, rows, config_.q_width());
  }
  const ScopedTimer timer(profile_, Operation::kProducts);
  weights.output.run(buffers_.attended.data(), rows, buffers_.product.data());
  add(buffers_.product.data(), rows * config_.width, buffers_.residual.data());
  return Status();
}

void Model::feed_forward(const LayerWeights& layer, std::int64_t rows) {
  {
    const ScopedTimer timer(profile_, Operation::kNorms);
    rms_norm(buffers_.residual.data(), layer.ffn_norm.data(), config_.norm_epsilon, rows,
             config_.width, dtype_, buffers_.normed.data());
  }
  {
    const ScopedTimer timer(profile_, Operation::kProducts);
    layer.gate_up.run(buffers_.normed.data(), rows, buffers_.gate_up.data());
  }
  {
    const ScopedTimer timer(profile_, Operation::kActivation);
    swiglu(buffers_.gate_up.data(), rows, config_.ffn_width, dtype_, buffers_.activated.data());
  }
  const ScopedTimer timer(profile_, Operation::kProducts);
  layer.down.run(buffers_.activated.data(), rows, buffers_.product.data());
  add(buffers_.product.data(), rows * config_.width, buffers_.residual.data());
}

std::span<const float> Model::logits(std::int64_t first_row, std::int64_t rows) {
  const ScopedTimer timer(profile_, Operation::kLogits);
  reserve_elements(&buffers_.logits, rows * config_.vocab);
  rms_norm(buffers_.residual.data() + first_row * config_.width, weights_.output_norm.data(),
           config_.norm_epsilon, rows, config_.width, dtype_, buffers_.normed.data());
  weights_.logits[0].run(buffers_.normed.data(), rows, buffers_.logits.data());
  return {buffers_.logits.data(), static_cast<std::size_t>(rows * config_.vocab)};
}

}  // namespace llm

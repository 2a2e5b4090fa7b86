#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/llm/attention.h"
#include "tools/llm/profile.h"
#include "tools/llm/weights.h"

namespace llm {

struct ModelOptions {
  regard::Dtype weights = regard::Dtype::kF32;  // or kBf16, where MatrixEngine::has_bf16()
  regard::Policy policy;                        // of attention
  std::int32_t threads = 1;
};

/// A model of the llama architecture. Tokens go through forward(), which appends their keys and
/// values to a cache; then logits() has the logits of any of these tokens.
class Model {
 public:
  /// The file's bytes must outlive the model.
  static regard::Expected<Model> load(const GgufContents& file, const ModelOptions& options);

  regard::Expected<KvCache> make_cache(const CacheOptions& options) const;

  /// Makes what a phase needs for steps of at most `batch` sequences and `rows` tokens of each.
  regard::Status prepare(const std::string& phase, std::int64_t batch, std::int64_t rows,
                         KvCache& cache);
  /// Tokens [batch, rows] of as many sequences; the phase was prepared. Refuses tokens that the
  /// vocabulary or the cache's capacity has no room for. If it fails (an Interrupt), the cache's
  /// lengths are as before.
  regard::Status forward(const std::string& phase, std::span<const std::int32_t> tokens,
                         std::span<const std::int32_t> sequences, KvCache& cache,
                         regard::Interrupt* interrupt = nullptr);
  /// Refuses tokens that the vocabulary does not have.
  regard::Status check_tokens(std::span<const std::int32_t> tokens) const;
  /// Attention of a step's rows in one layer, which writes rows.out.
  using Attend = std::function<regard::Status(std::int64_t layer, const StepRows& rows)>;
  /// The layers over tokens [batch, rows] of the vocabulary, also over none; `attend` computes
  /// attention, of rows with the type that they have beside a cache of type `cache`.
  regard::Status run_layers(std::span<const std::int32_t> tokens, std::int64_t batch,
                            regard::Dtype cache, const Attend& attend);
  /// Logits [rows, vocab] of rows of the last step; valid until the next call.
  std::span<const float> logits(std::int64_t first_row, std::int64_t rows);

  const ModelConfig& config() const noexcept { return config_; }
  std::int64_t weight_bytes() const noexcept { return weights_.bytes(); }
  const Attention& attention() const noexcept { return *attention_; }
  std::span<const float> rotary_scale() const noexcept { return weights_.rotary_scale; }
  Profile& profile() noexcept { return profile_; }

 private:
  /// Activations of a step: [rows, .] each.
  struct Buffers {
    std::vector<float> residual, qkv, product, gate_up, logits;
    std::vector<std::byte> normed, attention_rows, attention_out, attended, activated;
  };

  Model() = default;
  regard::Status check_step(std::span<const std::int32_t> tokens,
                            std::span<const std::int32_t> sequences, const KvCache& cache) const;
  void reserve(std::int64_t rows, regard::Dtype cache);
  void embed(std::span<const std::int32_t> tokens);
  StepRows step_rows(std::int64_t batch, std::int64_t rows, regard::Dtype cache);
  regard::Status run_attention(std::int64_t layer, const StepRows& rows, const Attend& attend);
  void feed_forward(const LayerWeights& layer, std::int64_t rows);

  ModelConfig config_;
  regard::Dtype dtype_ = regard::Dtype::kF32;
  std::unique_ptr<MatrixEngine> engine_;
  Weights weights_;
  std::unique_ptr<Attention> attention_;
  Buffers buffers_;
  Profile profile_;
};

}  // namespace llm

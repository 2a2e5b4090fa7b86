#pragma once

#include <cstdint>

#include "regard/status.h"
#include "tools/llm/gguf.h"

namespace llm {

/// The sizes of a model of the llama architecture.
struct ModelConfig {
  std::int64_t layers = 0;
  std::int64_t width = 0;  // of a token's vector
  std::int64_t ffn_width = 0;
  std::int64_t heads = 0;     // of queries
  std::int64_t heads_kv = 0;  // of keys and values
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  std::int64_t context = 0;  // positions that the model was trained for
  std::int64_t vocab = 0;
  double rotary_base = 10000.0;
  double position_scale = 1.0;  // positions are divided by it (linear scaling)
  double norm_epsilon = 1e-5;

  std::int64_t q_width() const noexcept { return heads * head_dim; }
  std::int64_t kv_width() const noexcept { return heads_kv * head_dim; }
};

/// Reads and checks the metadata. Refuses other architectures, experts and position scalings that
/// are not computed here, each by its key.
regard::Expected<ModelConfig> read_model_config(const GgufContents& file);

}  // namespace llm

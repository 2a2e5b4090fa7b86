#pragma once

#include <cstdint>
#include <vector>

#include "regard/status.h"
#include "tools/llm/gguf.h"
#include "tools/llm/linear.h"
#include "tools/llm/model_config.h"

namespace llm {

/// A layer's weights; products of the same input are one matrix.
struct LayerWeights {
  std::vector<float> attention_norm, ffn_norm;
  Linear qkv;      // rows of q, then k, then v
  Linear output;   // of attention
  Linear gate_up;  // rows of gate, then up
  Linear down;
};

/// The weights of a model, dequantised once into f32 or bf16. Embeddings stay in the file.
struct Weights {
  GgufTensor embedding;  // [vocab, width]
  std::vector<float>
      rotary_scale;  // what frequencies are divided by, [rotary_dim / 2]; may be empty
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;
  std::vector<Linear> logits;  // one: the embedding's, where the file has no other

  std::int64_t bytes() const noexcept;  // that a token's products read
};

/// Refuses tensors that are missing, of another shape, or of a layer and not known here.
regard::Expected<Weights> load_weights(const GgufContents& file, const ModelConfig& config,
                                       const MatrixEngine& engine, regard::Dtype dtype);

}  // namespace llm

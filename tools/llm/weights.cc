#include "tools/llm/weights.h"

#include <new>
#include <set>
#include <string>

#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Dtype;
using regard::Expected;
using regard::Status;

/// Takes tensors from a file by name, each with the shape that it must have.
class TensorReader {
 public:
  TensorReader(const GgufContents& file, const MatrixEngine& engine, Dtype dtype)
      : file_(file), engine_(engine), dtype_(dtype) {}

  Expected<const GgufTensor*> find(const std::string& name,
                                   const std::vector<std::int64_t>& shape) {
    const GgufTensor* const tensor = file_.find(name);
    if (tensor == nullptr) {
      return invalid("model", "tensor " + name + " is missing, expected " + shape_text(shape));
    }
    if (tensor->shape != shape) {
      return invalid("model", "shape of tensor " + name + " (" + shape_text(tensor->shape) +
                                  ") must be " + shape_text(shape));
    }
    taken_.insert(name);
    return tensor;
  }

  Expected<std::vector<float>> vector(const std::string& name, std::int64_t width) {
    const Expected<const GgufTensor*> tensor = find(name, {width});
    if (!tensor) return tensor.status();
    std::vector<float> values(static_cast<std::size_t>(width));
    dequantize(**tensor, 0, 1, values.data());
    return values;
  }

  /// The matrices [rows, inputs] of several tensors, one below the other.
  struct Part {
    std::string name;
    std::int64_t rows;
  };
  Expected<Linear> linear(const std::vector<Part>& parts, std::int64_t inputs) {
    // All are found before memory is taken: then it is in proportion to the file.
    std::vector<const GgufTensor*> tensors;
    std::int64_t rows = 0;
    for (const Part& part : parts) {
      const Expected<const GgufTensor*> tensor = find(part.name, {part.rows, inputs});
      if (!tensor) return tensor.status();
      tensors.push_back(*tensor);
      rows += part.rows;
    }
    std::vector<float> values(static_cast<std::size_t>(rows * inputs));
    float* next = values.data();
    for (const GgufTensor* tensor : tensors) {
      dequantize(*tensor, 0, tensor->rows(), next);
      next += tensor->rows() * inputs;
    }
    return Linear(engine_, dtype_, rows, inputs, values.data());
  }

  /// A tensor that nothing takes would change what the model computes.
  Status check_all_taken() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (taken_.count(tensor.name) == 0) {
        return invalid("model", "tensor " + quote(tensor.name) + " is not one of a llama model's");
      }
    }
    return Status();
  }

 private:
  const GgufContents& file_;
  const MatrixEngine& engine_;
  Dtype dtype_;
  std::set<std::string> taken_;
};

Expected<LayerWeights> load_layer(TensorReader& read, const ModelConfig& c, std::int64_t layer) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  auto attention_norm = read.vector(prefix + "attn_norm.weight", c.width);
  if (!attention_norm) return attention_norm.status();
  auto qkv = read.linear({{prefix + "attn_q.weight", c.q_width()},
                          {prefix + "attn_k.weight", c.kv_width()},
                          {prefix + "attn_v.weight", c.kv_width()}},
                         c.width);
  if (!qkv) return qkv.status();
  auto output = read.linear({{prefix + "attn_output.weight", c.width}}, c.q_width());
  if (!output) return output.status();
  auto ffn_norm = read.vector(prefix + "ffn_norm.weight", c.width);
  if (!ffn_norm) return ffn_norm.status();
  auto gate_up = read.linear(
      {{prefix + "ffn_gate.weight", c.ffn_width}, {prefix + "ffn_up.weight", c.ffn_width}},
      c.width);
  if (!gate_up) return gate_up.status();
  auto down = read.linear({{prefix + "ffn_down.weight", c.width}}, c.ffn_width);
  if (!down) return down.status();
  return LayerWeights{*std::move(attention_norm), *std::move(ffn_norm), *std::move(qkv),
                      *std::move(output),         *std::move(gate_up),  *std::move(down)};
}

}  // namespace

std::int64_t Weights::bytes() const noexcept {
  std::int64_t sum = 0;
  for (const LayerWeights& layer : layers) {
    sum += layer.qkv.bytes() + layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
  }
  for (const Linear& linear : logits) sum += linear.bytes();
  return sum;
}

Expected<Weights> load_weights(const GgufContents& file, const ModelConfig& c,
                               const MatrixEngine& engine, Dtype dtype) try {
  TensorReader read(file, engine, dtype);
  Weights made;
  const Expected<const GgufTensor*> embedding = read.find("token_embd.weight", {c.vocab, c.width});
  if (!embedding) return embedding.status();
  made.embedding = **embedding;
  if (file.find("rope_freqs.weight") != nullptr) {
    auto scale = read.vector("rope_freqs.weight", c.rotary_dim / 2);
    if (!scale) return scale.status();
    made.rotary_scale = *std::move(scale);
  }
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    auto loaded = load_layer(read, c, layer);
    if (!loaded) return loaded.status();
    made.layers.push_back(*std::move(loaded));
  }
  auto norm = read.vector("output_norm.weight", c.width);
  if (!norm) return norm.status();
  made.output_norm = *std::move(norm);
  const bool tied = file.find("output.weight") == nullptr;
  auto logits = read.linear({{tied ? "token_embd.weight" : "output.weight", c.vocab}}, c.width);
  if (!logits) return logits.status();
  made.logits.push_back(*std::move(logits));
  if (Status status = read.check_all_taken(); !status.ok()) return status;
  return made;
} catch (const std::bad_alloc&) {
  return Status(regard::StatusCode::kOutOfMemory,
                std::string("[model] no memory for the weights in ") + to_string(dtype) +
                    (dtype == Dtype::kF32 ? "; --dtype bf16 takes half" : ""));
}

}  // namespace llm

#include "tools/llm/model_config.h"

#include <cmath>
#include <string>

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

Status refused(std::string_view key, const std::string& value, const std::string& expected) {
  return Status(StatusCode::kInvalidArgument,
                "[model] " + std::string(key) + " (" + value + ") must be " + expected);
}

/// Reads keys; remembers the first that is missing or wrong.
class Reader {
 public:
  explicit Reader(const GgufContents& file) : file_(file) {}

  std::int64_t extent(std::string_view key, std::int64_t max) {
    const Expected<std::int64_t> value = file_.integer(key);
    if (!value) return fail(value.status());
    if (*value < 1 || *value > max) {
      return fail(refused(key, std::to_string(*value), "1 to " + std::to_string(max)));
    }
    return *value;
  }
  std::int64_t extent_or(std::string_view key, std::int64_t max, std::int64_t otherwise) {
    return file_.has(key) ? extent(key, max) : otherwise;
  }
  double positive(std::string_view key) {
    const Expected<double> value = file_.number(key);
    if (!value) return static_cast<double>(fail(value.status()));
    if (!(*value > 0.0) || !std::isfinite(*value)) {
      fail(refused(key, std::to_string(*value), "a positive number"));
    }
    return *value;
  }
  std::int64_t fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
    return 1;  // what no later check divides by or refuses
  }
  const Status& status() const { return status_; }

 private:
  const GgufContents& file_;
  Status status_;
};

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 24;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeadDim = 1024;

Status check_position_scaling(const GgufContents& file, ModelConfig* config) {
  if (!file.has("llama.rope.scaling.type")) return Status();
  const Expected<std::string_view> type = file.text("llama.rope.scaling.type");
  if (!type) return type.status();
  if (*type == "none") return Status();
  if (*type != "linear") {
    return refused("llama.rope.scaling.type", std::string(*type), "none or linear");
  }
  Reader read(file);
  config->position_scale = read.positive("llama.rope.scaling.factor");
  return read.status();
}

Status check_relations(const ModelConfig& c) {
  if (c.heads % c.heads_kv != 0) {
    return refused("llama.attention.head_count_kv", std::to_string(c.heads_kv),
                   "a divisor of head_count, " + std::to_string(c.heads));
  }
  if (c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim) {
    return refused("llama.rope.dimension_count", std::to_string(c.rotary_dim),
                   "even and at most the head dimension, " + std::to_string(c.head_dim));
  }
  return Status();
}

}  // namespace

Expected<ModelConfig> read_model_config(const GgufContents& file) {
  const Expected<std::string_view> architecture = file.text("general.architecture");
  if (!architecture) return architecture.status();
  if (*architecture != "llama") {
    return refused("general.architecture", std::string(*architecture), "llama");
  }
  if (file.has("llama.expert_count")) {
    const Expected<std::int64_t> experts = file.integer("llama.expert_count");
    if (!experts) return experts.status();
    if (*experts != 0) {
      return refused("llama.expert_count", std::to_string(*experts), "0: experts are not computed");
    }
  }

  Reader read(file);
  ModelConfig c;
  c.layers = read.extent("llama.block_count", kMaxLayers);
  c.width = read.extent("llama.embedding_length", kMaxExtent);
  c.ffn_width = read.extent("llama.feed_forward_length", kMaxExtent);
  c.context = read.extent("llama.context_length", kMaxExtent);
  c.heads = read.extent("llama.attention.head_count", c.width);
  c.heads_kv = read.extent_or("llama.attention.head_count_kv", c.heads, c.heads);
  c.norm_epsilon = read.positive("llama.attention.layer_norm_rms_epsilon");
  if (file.has("llama.rope.freq_base")) c.rotary_base = read.positive("llama.rope.freq_base");
  if (!read.status().ok()) return read.status();

  if (!file.has("llama.attention.key_length") && c.width % c.heads != 0) {
    return refused("llama.attention.head_count", std::to_string(c.heads),
                   "a divisor of embedding_length, " + std::to_string(c.width));
  }
  c.head_dim = read.extent_or("llama.attention.key_length", kMaxHeadDim, c.width / c.heads);
  const std::int64_t value_dim =
      read.extent_or("llama.attention.value_length", kMaxHeadDim, c.head_dim);
  c.rotary_dim = read.extent_or("llama.rope.dimension_count", kMaxHeadDim, c.head_dim);
  if (!read.status().ok()) return read.status();
  if (value_dim != c.head_dim) {
    return refused("llama.attention.value_length", std::to_string(value_dim),
                   "key_length, " + std::to_string(c.head_dim));
  }
  const GgufTensor* embedding = file.find("token_embd.weight");
  c.vocab = embedding != nullptr ? embedding->rows() : 0;
  if (Status status = check_position_scaling(file, &c); !status.ok()) return status;
  if (Status status = check_relations(c); !status.ok()) return status;
  return c;
}

}  // namespace llm

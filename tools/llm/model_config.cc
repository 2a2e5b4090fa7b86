#include "tools/llm/model_config.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

Status refused(std::string_view key, const std::string& value, const std::string& expected) {
  return Status(StatusCode::kInvalidArgument,
                "[model] " + std::string(key) + " (" + value + ") must be " + expected);
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
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
      fail(refused(key, number_text(*value), "a positive number"));
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

/// What would change what a model computes, and is not computed here.
Status check_extensions(const GgufContents& file) {
  for (const char* key : {"llama.expert_count", "llama.attention.sliding_window",
                          "llama.attention.clamp_kqv", "llama.attention.max_alibi_bias",
                          "llama.attn_logit_softcapping", "llama.final_logit_softcapping"}) {
    if (!file.has(key)) continue;
    const Expected<double> value = file.number(key);
    if (!value) return value.status();
    if (*value != 0.0) return refused(key, number_text(*value), "0: it is not computed");
  }
  for (const char* key : {"llama.logit_scale", "llama.embedding_scale", "llama.residual_scale"}) {
    if (!file.has(key)) continue;
    const Expected<double> value = file.number(key);
    if (!value) return value.status();
    if (*value != 1.0) return refused(key, number_text(*value), "1: it is not computed");
  }
  return Status();
}

Status check_position_scaling(const GgufContents& file, ModelConfig* config) {
  // A factor without a type is linear; scale_linear is its name in older files.
  const char* const older = "llama.rope.scale_linear";
  const bool is_older = !file.has("llama.rope.scaling.factor") && file.has(older);
  const char* const factor = is_older ? older : "llama.rope.scaling.factor";
  const bool has_type = file.has("llama.rope.scaling.type");
  if (has_type) {
    const Expected<std::string_view> type = file.text("llama.rope.scaling.type");
    if (!type) return type.status();
    if (*type == "none") return Status();
    if (*type != "linear") {
      return refused("llama.rope.scaling.type", quote(*type), "none or linear");
    }
  }
  if (!has_type && !file.has(factor)) return Status();
  Reader read(file);
  config->position_scale = read.positive(factor);
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
    return refused("general.architecture", quote(*architecture), "llama");
  }
  if (Status status = check_extensions(file); !status.ok()) return status;

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

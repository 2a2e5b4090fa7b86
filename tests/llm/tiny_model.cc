#include "tests/llm/tiny_model.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace llm::test {
namespace {

using Row = std::vector<double>;

/// y = weights [outputs, inputs] x.
Row product(const TinyTensor& weights, const Row& x) {
  Row y(static_cast<std::size_t>(weights.shape[0]));
  for (std::size_t n = 0; n < y.size(); ++n) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[n] += static_cast<double>(weights.values[n * x.size() + i]) * x[i];
    }
  }
  return y;
}

Row norm(const Row& x, const TinyTensor& weight, double epsilon) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  Row y(x);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= scale * static_cast<double>(weight.values[i]);
  return y;
}

/// A model's tensors by name.
class TinyReference {
 public:
  explicit TinyReference(const TinySpec& spec) : spec_(spec), tensors_(random_tensors(spec)) {
    if (spec.type == GgmlType::kF32) return;
    const TinyFile file(spec);  // whose blocks stand for other values
    for (TinyTensor& tensor : tensors_) {
      const GgufTensor* const stored = file.contents().find(tensor.name);
      dequantize(*stored, 0, stored->rows(), tensor.values.data());
    }
  }

  std::vector<double> logits(std::span<const std::int32_t> tokens) const {
    const TinyTensor& embedding = named("token_embd.weight");
    std::vector<Row> x;
    for (const std::int32_t token : tokens) {
      const auto row = embedding.values.begin() + token * spec_.width;
      x.emplace_back(row, row + spec_.width);
    }
    for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      attend(prefix, &x);
      for (Row& row : x) feed_forward(prefix, &row);
    }
    std::vector<double> made;
    for (const Row& row : x) {
      const Row normed = norm(row, named("output_norm.weight"), spec_.epsilon);
      const Row y = product(named(spec_.tied ? "token_embd.weight" : "output.weight"), normed);
      made.insert(made.end(), y.begin(), y.end());
    }
    return made;
  }

 private:
  const TinyTensor& named(const std::string& name) const {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const TinyTensor& t) { return t.name == name; });
  }

  /// Rotates neighbours (2x, 2x + 1) of each head.
  void rotate(Row* heads, std::int64_t position) const {
    const std::int64_t dim = spec_.dim();
    for (std::size_t head = 0; head < heads->size(); head += static_cast<std::size_t>(dim)) {
      for (std::int64_t x = 0; x < spec_.rotary() / 2; ++x) {
        double frequency =
            1.0 / std::pow(static_cast<double>(spec_.rotary_base),
                           2.0 * static_cast<double>(x) / static_cast<double>(spec_.rotary()));
        frequency /= spec_.position_scale;
        if (spec_.rope_freqs) {
          frequency /=
              static_cast<double>(named("rope_freqs.weight").values[static_cast<std::size_t>(x)]);
        }
        const double angle = static_cast<double>(position) * frequency;
        double& a = (*heads)[head + static_cast<std::size_t>(2 * x)];
        double& b = (*heads)[head + static_cast<std::size_t>(2 * x + 1)];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  void attend(const std::string& prefix, std::vector<Row>* x) const {
    std::vector<Row> q, k, v;
    for (std::size_t t = 0; t < x->size(); ++t) {
      const Row normed = norm((*x)[t], named(prefix + "attn_norm.weight"), spec_.epsilon);
      q.push_back(product(named(prefix + "attn_q.weight"), normed));
      k.push_back(product(named(prefix + "attn_k.weight"), normed));
      v.push_back(product(named(prefix + "attn_v.weight"), normed));
      rotate(&q.back(), static_cast<std::int64_t>(t));
      rotate(&k.back(), static_cast<std::int64_t>(t));
    }
    for (std::size_t t = 0; t < x->size(); ++t) {
      Row mixed;
      for (std::int64_t head = 0; head < spec_.heads; ++head) {
        const Row of_head = mix(q[t], k, v, head, t + 1);
        mixed.insert(mixed.end(), of_head.begin(), of_head.end());
      }
      const Row y = product(named(prefix + "attn_output.weight"), mixed);
      for (std::size_t i = 0; i < y.size(); ++i) (*x)[t][i] += y[i];
    }
  }

  /// softmax(q k / sqrt(dim)) v of one head over the first `keys` keys.
  Row mix(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v, std::int64_t head,
          std::size_t keys) const {
    const auto dim = static_cast<std::size_t>(spec_.dim());
    const std::size_t from = static_cast<std::size_t>(head) * dim;
    const std::size_t at = static_cast<std::size_t>(head / (spec_.heads / spec_.heads_kv)) * dim;
    Row weights, out(dim);
    double sum = 0.0;
    for (std::size_t j = 0; j < keys; ++j) {
      double score = 0.0;
      for (std::size_t i = 0; i < dim; ++i) score += q[from + i] * k[j][at + i];
      weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
      sum += weights.back();
    }
    for (std::size_t j = 0; j < keys; ++j) {
      for (std::size_t i = 0; i < dim; ++i) out[i] += weights[j] / sum * v[j][at + i];
    }
    return out;
  }

  void feed_forward(const std::string& prefix, Row* x) const {
    const Row normed = norm(*x, named(prefix + "ffn_norm.weight"), spec_.epsilon);
    Row gate = product(named(prefix + "ffn_gate.weight"), normed);
    const Row up = product(named(prefix + "ffn_up.weight"), normed);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
    const Row y = product(named(prefix + "ffn_down.weight"), gate);
    for (std::size_t i = 0; i < y.size(); ++i) (*x)[i] += y[i];
  }

  TinySpec spec_;
  std::vector<TinyTensor> tensors_;
};

}  // namespace

std::vector<TinyTensor> random_tensors(const TinySpec& s) {
  std::mt19937 random(s.seed);
  std::vector<TinyTensor> made;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float middle,
                       float spread) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    TinyTensor tensor{name, std::move(shape), {}};
    for (std::int64_t i = 0; i < count; ++i) {
      const float unit = static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f;  // [-1, 1)
      tensor.values.push_back(middle + spread * unit);
    }
    made.push_back(std::move(tensor));
  };
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t inputs) {
    add(name, {rows, inputs}, 0.0f, 2.0f / std::sqrt(static_cast<float>(inputs)));
  };
  add("token_embd.weight", {s.vocab, s.width}, 0.0f, 1.0f);
  if (s.rope_freqs) add("rope_freqs.weight", {s.rotary() / 2}, 3.0f, 2.0f);
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    add(prefix + "attn_norm.weight", {s.width}, 1.0f, 0.5f);
    matrix(prefix + "attn_q.weight", s.heads * s.dim(), s.width);
    matrix(prefix + "attn_k.weight", s.heads_kv * s.dim(), s.width);
    matrix(prefix + "attn_v.weight", s.heads_kv * s.dim(), s.width);
    matrix(prefix + "attn_output.weight", s.width, s.heads * s.dim());
    add(prefix + "ffn_norm.weight", {s.width}, 1.0f, 0.5f);
    matrix(prefix + "ffn_gate.weight", s.ffn_width, s.width);
    matrix(prefix + "ffn_up.weight", s.ffn_width, s.width);
    matrix(prefix + "ffn_down.weight", s.width, s.ffn_width);
  }
  add("output_norm.weight", {s.width}, 1.0f, 0.5f);
  if (!s.tied) matrix("output.weight", s.vocab, s.width);
  return made;
}

GgufWriter metadata(const TinySpec& s, std::string_view left_out) {
  GgufWriter writer;
  const auto put = [&](std::string_view key, auto value) {
    if (key != left_out) writer.set(key, value);
  };
  const auto extent = [&](std::string_view key, std::int64_t value) {
    put(key, static_cast<std::uint32_t>(value));
  };
  put("general.architecture", "llama");
  extent("llama.block_count", s.layers);
  extent("llama.embedding_length", s.width);
  extent("llama.feed_forward_length", s.ffn_width);
  extent("llama.context_length", s.context);
  extent("llama.attention.head_count", s.heads);
  extent("llama.attention.head_count_kv", s.heads_kv);
  put("llama.attention.layer_norm_rms_epsilon", s.epsilon);
  put("llama.rope.freq_base", s.rotary_base);
  if (s.head_dim != 0) extent("llama.attention.key_length", s.head_dim);
  if (s.rotary_dim != 0) extent("llama.rope.dimension_count", s.rotary_dim);
  if (s.position_scale != 1.0) {
    put("llama.rope.scaling.type", "linear");
    put("llama.rope.scaling.factor", static_cast<float>(s.position_scale));
  }
  return writer;
}

void add_tensors(GgufWriter& writer, const std::vector<TinyTensor>& tensors, GgmlType type) {
  for (const TinyTensor& tensor : tensors) {
    writer.tensor(tensor.name, tensor.shape, tensor.shape.size() == 1 ? GgmlType::kF32 : type,
                  tensor.values);
  }
}

TinyFile::TinyFile(const TinySpec& spec)
    : TinyFile([&] {
        GgufWriter writer = metadata(spec);
        add_tensors(writer, random_tensors(spec), spec.type);
        return writer;
      }()) {}

TinyFile::TinyFile(const GgufWriter& writer) : bytes_(writer.bytes()) {
  contents_ = GgufContents::parse(bytes_).value();
}

std::vector<double> reference_logits(const TinySpec& spec, std::span<const std::int32_t> tokens) {
  return TinyReference(spec).logits(tokens);
}

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab)));
  }
  return tokens;
}

TinyModel::TinyModel(const TinySpec& spec, const TinySetup& setup)
    : file_(std::make_unique<TinyFile>(spec)) {
  omp_set_num_threads(setup.model.threads);
  model_ = Model::load(file_->contents(), setup.model).value();
  cache_ = model_->make_cache(setup.cache).value();
  GenerateOptions options = setup.generate;
  options.samples = std::max(options.samples, setup.cache.sequences);
  regard::check(prepare_generation(*model_, *cache_, options));
  options.samples = 1;
  regard::check(prepare_generation(*model_, *cache_, options));
}

std::vector<float> TinyModel::append(std::int32_t sequence, std::span<const std::int32_t> tokens,
                                     std::int64_t piece) {
  std::vector<float> made;
  for (std::size_t at = 0; at < tokens.size(); at += static_cast<std::size_t>(piece)) {
    const auto part =
        tokens.subspan(at, std::min(static_cast<std::size_t>(piece), tokens.size() - at));
    const char* const phase = part.size() == 1 ? "decode" : "prefill";
    regard::check(model_->forward(phase, part, {&sequence, 1}, *cache_));
    const auto logits = model_->logits(0, static_cast<std::int64_t>(part.size()));
    made.insert(made.end(), logits.begin(), logits.end());
  }
  return made;
}

std::vector<float> TinyModel::logits(std::span<const std::int32_t> tokens, std::int64_t piece) {
  const std::int32_t sequence = cache_->add();
  const std::vector<float> made = append(sequence, tokens, piece);
  cache_->remove(sequence);
  return made;
}

regard::Expected<Generation> TinyModel::generate(std::int32_t sequence,
                                                 std::span<const std::int32_t> prompt,
                                                 const GenerateOptions& options,
                                                 regard::Interrupt* interrupt) {
  return llm::generate(
      *model_, *cache_, sequence, prompt, options, [](std::int64_t, std::int32_t) { return true; },
      interrupt);
}

bool has_bf16() { return MatrixEngine().has_bf16(); }

}  // namespace llm::test

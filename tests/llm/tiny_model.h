#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tools/llm/generate.h"
#include "tools/llm/model.h"

// Tiny llama models with random weights, and what they compute in plain double precision.

namespace llm::test {

/// The sizes of a model and what its file says beside them.
struct TinySpec {
  std::int64_t layers = 2, width = 32, ffn_width = 48;
  std::int64_t heads = 4, heads_kv = 2;
  std::int64_t head_dim = 0;    // 0: width / heads, and the file has no key_length
  std::int64_t rotary_dim = 0;  // 0: head_dim, and the file has no dimension_count
  std::int64_t context = 96, vocab = 53;
  bool tied = true;  // logits by the embedding
  bool rope_freqs = false;
  double position_scale = 1.0;  // linear scaling where it is not 1
  float rotary_base = 10000.0f;
  float epsilon = 1e-5f;
  GgmlType type = GgmlType::kF32;  // of matrices
  unsigned seed = 1;

  std::int64_t dim() const { return head_dim != 0 ? head_dim : width / heads; }
  std::int64_t rotary() const { return rotary_dim != 0 ? rotary_dim : dim(); }
};

/// A tensor of a file, as f32.
struct TinyTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// All tensors of a model, in the order of the file.
std::vector<TinyTensor> random_tensors(const TinySpec& spec);
/// The metadata of a model, without tensors and without one of the keys.
GgufWriter metadata(const TinySpec& spec, std::string_view left_out = "");
void add_tensors(GgufWriter& writer, const std::vector<TinyTensor>& tensors, GgmlType type);

/// The bytes of a file, and its contents, which point into them.
class TinyFile {
 public:
  explicit TinyFile(const TinySpec& spec);
  explicit TinyFile(const GgufWriter& writer);
  const GgufContents& contents() const { return *contents_; }

 private:
  std::vector<std::byte> bytes_;
  std::optional<GgufContents> contents_;
};

/// Logits [tokens, vocab] of a llama model in double precision: no cache, a loop for each sum.
std::vector<double> reference_logits(const TinySpec& spec, std::span<const std::int32_t> tokens);

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocab, unsigned seed);

/// A model that is loaded, with a cache whose phases are prepared; the file stays with it.
struct TinySetup {
  ModelOptions model{};
  CacheOptions cache{.sequences = 4, .capacity = 96};
  GenerateOptions generate{};
};
class TinyModel {
 public:
  explicit TinyModel(const TinySpec& spec, const TinySetup& setup = {});

  Model& model() { return *model_; }
  KvCache& cache() { return *cache_; }

  /// Logits [tokens, vocab] of tokens appended to a sequence in pieces of at most `piece`.
  std::vector<float> append(std::int32_t sequence, std::span<const std::int32_t> tokens,
                            std::int64_t piece = kPrefillRows);
  /// Those of a sequence that is new, and removed again.
  std::vector<float> logits(std::span<const std::int32_t> tokens,
                            std::int64_t piece = kPrefillRows);
  regard::Expected<Generation> generate(std::int32_t sequence, std::span<const std::int32_t> prompt,
                                        const GenerateOptions& options,
                                        regard::Interrupt* interrupt = nullptr);

 private:
  std::unique_ptr<TinyFile> file_;
  std::optional<Model> model_;
  std::optional<KvCache> cache_;
};

/// The largest difference, relative to the largest value expected; infinite where one is not a
/// number.
template <class T>
double relative_error(std::span<const float> found, const std::vector<T>& expected) {
  if (found.size() != expected.size()) return 1e30;
  double error = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(found[i]) - static_cast<double>(expected[i]);
    if (!(difference == difference)) return 1e30;
    error = std::max(error, difference < 0 ? -difference : difference);
    largest = std::max(largest, static_cast<double>(expected[i] < 0 ? -expected[i] : expected[i]));
  }
  return error / largest;
}

/// Whether tests with weights of bf16 can run: only with AVX-512 are they faster.
bool has_bf16();

}  // namespace llm::test

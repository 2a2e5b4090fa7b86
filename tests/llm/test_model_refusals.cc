#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/llm/tiny_model.h"
#include "tools/llm/model_config.h"

// Files, policies and weights that a model refuses, and what it says.

namespace llm {
namespace {

using regard::StatusCode;
using test::GgufWriter;
using test::TinyFile;
using test::TinySpec;
using test::TinyTensor;

const TinySpec kRefusedSpec;  // width 32, ffn 48, heads 4 and 2 of 8, vocab 53

regard::Status load_status(const GgufWriter& writer) {
  const TinyFile file(writer);
  return Model::load(file.contents(), {}).status();
}

/// What loading says of a file whose metadata has another value, or a value more.
template <class T>
std::string with_key(const char* key, T value) {
  GgufWriter writer = test::metadata(kRefusedSpec, key);
  writer.set(key, value);
  test::add_tensors(writer, test::random_tensors(kRefusedSpec), GgmlType::kF32);
  const regard::Status status = load_status(writer);
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << status.to_string();
  return status.ok() ? "loaded" : status.message();
}

std::string without_key(const char* key) {
  GgufWriter writer = test::metadata(kRefusedSpec, key);
  test::add_tensors(writer, test::random_tensors(kRefusedSpec), GgmlType::kF32);
  const regard::Status status = load_status(writer);
  return status.ok() ? "loaded" : status.message();
}

constexpr std::uint32_t kZero = 0;

TEST(Metadata, ThatIsNeededIsMissedByItsKey) {
  for (const char* key : {"general.architecture", "llama.block_count", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.context_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    EXPECT_NE(without_key(key).find("key '" + std::string(key) + "' is missing"), std::string::npos)
        << without_key(key);
  }
  EXPECT_EQ(without_key("llama.rope.freq_base"), "loaded");
}

TEST(Metadata, OfAnotherArchitectureIsRefused) {
  EXPECT_EQ(with_key("general.architecture", "gemma"),
            "[model] general.architecture ('gemma') must be llama");
  // A hostile name does not reach a terminal as it is.
  EXPECT_EQ(with_key("general.architecture", "\x1b[2J"),
            "[model] general.architecture ('\\x1b[2J') must be llama");
}

TEST(Metadata, OutOfRangeIsRefused) {
  EXPECT_EQ(with_key("llama.context_length", kZero),
            "[model] llama.context_length (0) must be 1 to 16777216");
  EXPECT_EQ(with_key("llama.block_count", kZero),
            "[model] llama.block_count (0) must be 1 to 4096");
  EXPECT_EQ(with_key("llama.block_count", std::uint32_t{4097}),
            "[model] llama.block_count (4097) must be 1 to 4096");
  EXPECT_EQ(with_key("llama.embedding_length", std::int32_t{-32}),
            "[model] llama.embedding_length (-32) must be 1 to 16777216");
  EXPECT_EQ(with_key("llama.attention.head_count", kZero),
            "[model] llama.attention.head_count (0) must be 1 to 32");
  EXPECT_EQ(with_key("llama.attention.head_count_kv", kZero),
            "[model] llama.attention.head_count_kv (0) must be 1 to 4");
  EXPECT_EQ(
      with_key("llama.attention.head_count", std::vector<std::int32_t>{4, 4}),
      "[gguf] key 'llama.attention.head_count' is an array of 2 integers, expected an integer");
  for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_NE(with_key("llama.rope.freq_base", value).find("must be a positive number"),
              std::string::npos);
    EXPECT_NE(
        with_key("llama.attention.layer_norm_rms_epsilon", value).find("must be a positive number"),
        std::string::npos);
  }
}

TEST(Metadata, HeadsThatDoNotDivideAreRefused) {
  EXPECT_EQ(with_key("llama.attention.head_count_kv", std::uint32_t{3}),
            "[model] llama.attention.head_count_kv (3) must be a divisor of head_count, 4");
  EXPECT_EQ(with_key("llama.attention.head_count", std::uint32_t{5}),
            "[model] llama.attention.head_count (5) must be a divisor of embedding_length, 32");
  EXPECT_EQ(
      with_key("llama.rope.dimension_count", std::uint32_t{7}),
      "[model] llama.rope.dimension_count (7) must be even and at most the head dimension, 8");
  EXPECT_EQ(
      with_key("llama.rope.dimension_count", std::uint32_t{10}),
      "[model] llama.rope.dimension_count (10) must be even and at most the head dimension, 8");
  EXPECT_EQ(with_key("llama.attention.value_length", std::uint32_t{16}),
            "[model] llama.attention.value_length (16) must be key_length, 8");
}

TEST(Metadata, OfWhatIsNotComputedIsRefused) {
  EXPECT_EQ(with_key("llama.rope.scaling.type", "yarn"),
            "[model] llama.rope.scaling.type ('yarn') must be none or linear");
  EXPECT_EQ(with_key("llama.rope.scaling.type", "none"), "loaded");
  EXPECT_EQ(with_key("llama.rope.scaling.type", "linear"),
            "[gguf] key 'llama.rope.scaling.factor' is missing, expected a number");
  EXPECT_EQ(with_key("llama.rope.scaling.factor", 0.0f),
            "[model] llama.rope.scaling.factor (0) must be a positive number");
  EXPECT_EQ(with_key("llama.expert_count", std::uint32_t{8}),
            "[model] llama.expert_count (8) must be 0: it is not computed");
  EXPECT_EQ(with_key("llama.expert_count", kZero), "loaded");
  EXPECT_EQ(with_key("llama.attention.sliding_window", std::uint32_t{4096}),
            "[model] llama.attention.sliding_window (4096) must be 0: it is not computed");
  EXPECT_EQ(with_key("llama.final_logit_softcapping", 30.0f),
            "[model] llama.final_logit_softcapping (30) must be 0: it is not computed");
  EXPECT_EQ(with_key("llama.logit_scale", 0.5f),
            "[model] llama.logit_scale (0.5) must be 1: it is not computed");
}

TEST(Metadata, AFactorWithoutATypeScalesLinearly) {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    GgufWriter writer = test::metadata(kRefusedSpec);
    writer.set(key, 4.0f);
    test::add_tensors(writer, test::random_tensors(kRefusedSpec), GgmlType::kF32);
    const TinyFile file(writer);
    EXPECT_EQ(read_model_config(file.contents()).value().position_scale, 4.0) << key;
  }
}

/// What loading says of a file with other tensors.
std::string with_tensors(const std::function<void(std::vector<TinyTensor>*)>& change,
                         const TinySpec& spec = kRefusedSpec) {
  GgufWriter writer = test::metadata(spec);
  auto tensors = test::random_tensors(spec);
  change(&tensors);
  test::add_tensors(writer, tensors, GgmlType::kF32);
  const regard::Status status = load_status(writer);
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument) << status.to_string();
  return status.ok() ? "loaded" : status.message();
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape)
    text += (text.empty() ? "[" : ",") + std::to_string(extent);
  return text + "]";
}

TEST(Tensors, EachIsMissedByName) {
  TinySpec spec = kRefusedSpec;
  spec.tied = false;
  const auto all = test::random_tensors(spec);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string message = with_tensors(
        [&](auto* tensors) { tensors->erase(tensors->begin() + static_cast<std::ptrdiff_t>(i)); },
        spec);
    if (all[i].name == "output.weight") {
      EXPECT_EQ(message, "loaded");  // then the embedding has its place
    } else if (all[i].name == "token_embd.weight") {
      EXPECT_NE(message.find("tensor token_embd.weight is missing"), std::string::npos) << message;
    } else {
      EXPECT_EQ(message,
                "[model] tensor " + all[i].name + " is missing, expected " + text_of(all[i].shape));
    }
  }
}

TEST(Tensors, OfOtherShapesAreRefusedByName) {
  TinySpec spec = kRefusedSpec;
  spec.tied = false;
  spec.rope_freqs = true;
  const auto all = test::random_tensors(spec);
  for (std::size_t i = 0; i < all.size(); ++i) {
    // A row more, a transposed matrix, and one dimension more.
    std::vector<std::vector<std::int64_t>> shapes{all[i].shape, all[i].shape, all[i].shape};
    ++shapes[0].back();
    std::reverse(shapes[1].begin(), shapes[1].end());
    shapes[2].insert(shapes[2].begin(), 1);
    for (const auto& shape : shapes) {
      if (shape == all[i].shape) continue;
      const std::string message = with_tensors(
          [&](auto* tensors) {
            std::int64_t count = 1;
            for (const std::int64_t extent : shape) count *= extent;
            (*tensors)[i].shape = shape;
            (*tensors)[i].values.resize(static_cast<std::size_t>(count));
          },
          spec);
      if (all[i].name == "token_embd.weight") {  // which the vocabulary's size comes from
        EXPECT_NE(message, "loaded");
        continue;
      }
      EXPECT_EQ(message, "[model] shape of tensor " + all[i].name + " (" + text_of(shape) +
                             ") must be " + text_of(all[i].shape));
    }
  }
}

TEST(Tensors, ThatAModelDoesNotHaveAreRefusedByName) {
  for (const char* name : {"blk.0.attn_q.bias", "blk.2.attn_norm.weight", "output_norm.bias"}) {
    EXPECT_EQ(with_tensors([&](auto* t) {
                t->push_back({name, {4}, {1, 2, 3, 4}});
              }),
              "[model] tensor '" + std::string(name) + "' is not one of a llama model's");
  }
  EXPECT_EQ(with_tensors([&](auto* t) {
              t->push_back({"\x1b[2J", {1}, {1}});
            }),
            "[model] tensor '\\x1b[2J' is not one of a llama model's");
}

TEST(Tensors, HugeSizesTakeNoMemoryBeforeTheyAreFound) {
  // 2^24 rows of 2^24 elements would be 2^50 bytes.
  for (const char* key : {"llama.feed_forward_length", "llama.attention.key_length"}) {
    const std::uint32_t huge = std::string(key) == "llama.feed_forward_length" ? 1u << 24 : 1024;
    EXPECT_NE(with_key(key, huge).find("shape of tensor blk.0."), std::string::npos)
        << with_key(key, huge);
  }
}

TEST(Tensors, AHugeContextCostsNothingUntilACacheHasIt) {
  TinySpec spec = kRefusedSpec;
  spec.context = 1 << 24;
  const TinyFile file(spec);
  Model model = Model::load(file.contents(), {}).value();
  KvCache cache = model.make_cache({.capacity = 40}).value();
  regard::check(prepare_generation(model, cache, {}));
  const auto tokens = test::random_tokens(40, spec.vocab, 1);
  regard::check(prefill(model, cache, cache.add(), tokens, nullptr));
  EXPECT_LT(test::relative_error(model.logits(0, 40), test::reference_logits(spec, tokens)), 2e-5);
}

TEST(Backends, ThatCannotRunAreRefusedWithReasons) {
  const TinyFile file(kRefusedSpec);
  ModelOptions options;
  options.policy.only = {regard::parse_backend("cudnn_attention").value()};
  Model model = Model::load(file.contents(), options).value();
  for (const std::int64_t page_size : {0, 16}) {
    KvCache cache = model.make_cache({.page_size = page_size, .capacity = 32}).value();
    const regard::Status status = prepare_generation(model, cache, {});
    ASSERT_EQ(status.code(), StatusCode::kNoBackend);
    ASSERT_NE(status.selection(), nullptr);
    EXPECT_NE(to_string(*status.selection()).find("cudnn"), std::string::npos);
    EXPECT_EQ(cache.add(), 0);
  }
}

TEST(Forward, RefusesWhatItHasNoRoomFor) {
  test::TinyModel tiny(kRefusedSpec, {.cache = {.page_size = 16, .sequences = 2, .capacity = 20}});
  const std::int32_t a = tiny.cache().add(), b = tiny.cache().add();
  tiny.append(a, test::random_tokens(15, kRefusedSpec.vocab, 1));
  const auto refusal = [&](const std::vector<std::int32_t>& tokens,
                           const std::vector<std::int32_t>& sequences) {
    return tiny.model().forward("prefill", tokens, sequences, tiny.cache()).message();
  };
  EXPECT_EQ(refusal({1, 2, 3, 4, 5, 6}, {a}),
            "[forward] 6 tokens for a sequence of 15, expected at most the capacity, 20");
  EXPECT_EQ(refusal({1, 53}, {a}), "[forward] token (53) must be 0 to 52");
  EXPECT_EQ(refusal({-1}, {a}), "[forward] token (-1) must be 0 to 52");
  EXPECT_EQ(refusal({1, 2, 3}, {a, b}),
            "[forward] 3 tokens of 2 sequences, expected as many of each and at least one");
  EXPECT_NE(refusal({}, {a}), "");
  EXPECT_NE(refusal({1}, {}), "");
  EXPECT_EQ(tiny.cache().length(a), 15);
  EXPECT_EQ(tiny.cache().length(b), 0);
}

TEST(Forward, GenerateRefusesSamplesWithoutSequences) {
  test::TinyModel tiny(kRefusedSpec, {.cache = {.sequences = 3, .capacity = 40}});
  const std::int32_t sequence = tiny.cache().add();
  GenerateOptions options;
  options.samples = 4;
  EXPECT_EQ(tiny.generate(sequence, std::vector<std::int32_t>{1}, options).status().message(),
            "[generate] samples (4) must be 1 to 3, for which the cache has sequences");
  options.samples = 0;
  EXPECT_FALSE(tiny.generate(sequence, std::vector<std::int32_t>{1}, options).ok());
  options.samples = 1;
  options.max_new_tokens = 0;
  EXPECT_EQ(tiny.generate(sequence, std::vector<std::int32_t>{1}, options).status().message(),
            "[generate] max_new_tokens (0) must be at least 1");
  EXPECT_EQ(tiny.cache().length(sequence), 0);
}

TEST(Weights, ThatAreNoNumbersGiveNoTokens) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
    TinySpec spec = kRefusedSpec;
    GgufWriter writer = test::metadata(spec);
    auto tensors = test::random_tensors(spec);
    for (TinyTensor& tensor : tensors) {
      if (tensor.name == "output_norm.weight") tensor.values.assign(tensor.values.size(), value);
    }
    test::add_tensors(writer, tensors, GgmlType::kF32);
    const TinyFile file(writer);
    Model model = Model::load(file.contents(), {}).value();
    KvCache cache = model.make_cache({.capacity = 32}).value();
    regard::check(prepare_generation(model, cache, {}));
    const std::int32_t sequence = cache.add();
    for (const double temperature : {0.0, 0.8}) {
      GenerateOptions options;
      options.sampling.temperature = temperature;
      const auto made = generate(
          model, cache, sequence, std::vector<std::int32_t>{1, 2, 3}, options,
          [](std::int64_t, std::int32_t) { return true; }, nullptr);
      ASSERT_FALSE(made.ok());
      EXPECT_EQ(made.status().message(),
                "[generate] a logit is infinite or not a number, expected finite ones: the model's "
                "weights are damaged");
      EXPECT_EQ(cache.length(sequence), 0);
    }
  }
}

}  // namespace
}  // namespace llm

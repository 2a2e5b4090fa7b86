// A sequence over ranks, which are threads here, against one rank.

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "distributed/thread_communicator.h"
#include "tests/llm/tiny_model.h"
#include "tools/llm/rank_generate.h"

namespace llm {
namespace {

using regard::Dtype;
using regard::Expected;
using regard::Status;
using regard::StatusCode;
using regard::distributed::Algorithm;
using regard::distributed::Communicator;
using test::TinyModel;
using test::TinySpec;
using Ids = std::vector<std::int32_t>;

const TinySpec kRankSpec{.context = 160};

/// What each rank does, at once.
void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  regard::distributed::ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      omp_set_num_threads(1);
      body(group.communicator(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Model load(const test::TinyFile& file) {
  return Model::load(file.contents(), {.weights = Dtype::kF32, .policy = {}, .threads = 1}).value();
}

RankOptions rank_options(Algorithm algorithm = Algorithm::kP2p, Dtype dtype = Dtype::kF32) {
  RankOptions made;
  made.dtype = dtype;
  made.capacity = 160;
  made.algorithm = algorithm;
  made.limits.timeout = std::chrono::seconds(600);
  return made;
}

GenerateOptions greedy(std::int64_t count) {
  GenerateOptions made;
  made.sampling.temperature = 0.0;
  made.max_new_tokens = count;
  return made;
}

const OnToken kGoOn = [](std::int64_t, std::int32_t) { return true; };

Generation alone(const Ids& prompt, const GenerateOptions& options, Dtype dtype = Dtype::kF32) {
  TinyModel tiny(kRankSpec, {.cache = {.dtype = dtype, .sequences = 1, .capacity = 160}});
  return tiny.generate(tiny.cache().add(), prompt, options).value();
}

struct Found {
  Expected<Generation> made = Status();
  std::int64_t positions = 0;
};
std::vector<Found> over_ranks(int ranks, const Ids& prompt, const GenerateOptions& options,
                              const RankOptions& given, const OnToken& on_token = kGoOn) {
  const test::TinyFile file(kRankSpec);
  std::vector<Found> found(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](Communicator& communicator) {
    Found& own = found[static_cast<std::size_t>(communicator.rank())];
    Model model = load(file);
    auto sequence = RankSequence::make(model, communicator, given);
    if (!sequence) {
      own.made = sequence.status();
      return;
    }
    own.made = generate_over_ranks(**sequence, prompt, options, on_token);
    own.positions = (*sequence)->own_positions();
  });
  return found;
}

TEST(RankSequence, GreedyTokensAreThoseOfOneRank) {
  for (const std::int64_t length : {1, 3, 6, 41}) {
    const Ids prompt = test::random_tokens(length, kRankSpec.vocab, 50);
    const Generation expected = alone(prompt, greedy(30));
    ASSERT_EQ(expected.samples[0].size(), 30u);
    for (const int ranks : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(std::to_string(length) + " tokens, ranks " + std::to_string(ranks));
      const std::vector<Found> found = over_ranks(ranks, prompt, greedy(30), rank_options());
      std::int64_t positions = 0;
      for (const Found& own : found) {
        ASSERT_TRUE(own.made.ok()) << own.made.status().to_string();
        EXPECT_EQ(own.made->samples, expected.samples);
        EXPECT_EQ(own.made->prompt_tokens, length);
        EXPECT_EQ(own.made->decode_tokens, 29);
        positions += own.positions;
        // No rank has more than its share: two runs, each with at most one row more.
        EXPECT_LE(own.positions, (length + 29) / ranks + 2);
      }
      EXPECT_EQ(positions, length + 29);  // the last token is not kept
      EXPECT_LT(test::relative_error(found[0].made->prompt_logits, expected.prompt_logits), 2e-6);
    }
  }
}

TEST(RankSequence, EveryAlgorithmAndType) {
  const Ids prompt = test::random_tokens(37, kRankSpec.vocab, 51);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    const Generation expected = alone(prompt, greedy(12), dtype);
    for (const Algorithm algorithm :
         {Algorithm::kAuto, Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(algorithm));
      const auto found = over_ranks(3, prompt, greedy(12), rank_options(algorithm, dtype));
      for (const Found& own : found) {
        ASSERT_TRUE(own.made.ok()) << own.made.status().to_string();
        EXPECT_EQ(own.made->samples, expected.samples);
      }
      EXPECT_LT(test::relative_error(found[0].made->prompt_logits, expected.prompt_logits),
                dtype == Dtype::kF32 ? 2e-6 : 1e-2);
    }
  }
}

TEST(RankSequence, DrawsEndAndFullContextsAreThoseOfOneRank) {
  const Ids prompt = test::random_tokens(9, kRankSpec.vocab, 52);
  GenerateOptions options;
  options.sampling = {.temperature = 1.0, .top_k = 0, .seed = 4};
  options.max_new_tokens = 400;
  const Generation full = alone(prompt, options);
  ASSERT_TRUE(full.context_full);
  for (const Found& own : over_ranks(2, prompt, options, rank_options())) {
    ASSERT_TRUE(own.made.ok()) << own.made.status().to_string();
    EXPECT_EQ(own.made->samples, full.samples);
    EXPECT_TRUE(own.made->context_full);
  }
  options.end_of_text = full.samples[0][20];
  const Generation ended = alone(prompt, options);
  ASSERT_LE(ended.samples[0].size(), 20u);
  for (const Found& own : over_ranks(2, prompt, options, rank_options())) {
    ASSERT_TRUE(own.made.ok()) << own.made.status().to_string();
    EXPECT_EQ(own.made->samples, ended.samples);
  }
}

TEST(RankSequence, RankZeroReceivesTokensAndStopsAll) {
  int calls = 0;
  const auto found =
      over_ranks(3, test::random_tokens(9, kRankSpec.vocab, 53), greedy(20), rank_options(),
                 [&](std::int64_t, std::int32_t) { return ++calls < 4; });
  EXPECT_EQ(calls, 4);
  for (const Found& own : found) {
    ASSERT_TRUE(own.made.ok()) << own.made.status().to_string();
    EXPECT_EQ(own.made->samples[0].size(), 4u);
  }
}

TEST(RankSequence, RefusalsOnEveryRank) {
  const Ids prompt = test::random_tokens(5, kRankSpec.vocab, 54);
  const auto refused = [&](const Ids& tokens, const GenerateOptions& options,
                           const RankOptions& given, const std::string& text) {
    for (const Found& own : over_ranks(2, tokens, options, given)) {
      EXPECT_EQ(own.made.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(own.made.status().message().find(text), std::string::npos)
          << own.made.status().message();
    }
  };
  GenerateOptions options = greedy(4);
  refused({}, options, rank_options(), "the prompt has no token");
  refused({1, 53}, options, rank_options(), "token (53) must be 0 to 52");
  refused(test::random_tokens(161, 53, 1), options, rank_options(),
          "the prompt has 161 tokens, and the context has room for 160");
  refused(prompt, options, rank_options(Algorithm::kP2p, Dtype::kI8),
          "the type of keys and values (i8) must be f32, bf16 or f16 over ranks");
  refused(prompt, options, rank_options(Algorithm::kA2aP2p), "needs a topology of at least 2x2");
  options.samples = 2;
  refused(prompt, options, rank_options(), "samples (2) must be 1 over ranks");
  options = greedy(4);
  options.prompt_lookup = 3;
  refused(prompt, options, rank_options(), "prompt_lookup (3) must be 0 over ranks");
  options = greedy(0);
  refused(prompt, options, rank_options(), "max_new_tokens (0) must be at least 1");
}

TEST(RankSequence, DamagedWeightsAreAnErrorOnEveryRank) {
  std::vector<test::TinyTensor> tensors = test::random_tensors(kRankSpec);
  for (test::TinyTensor& tensor : tensors) {
    if (tensor.name == "output_norm.weight") tensor.values[3] = INFINITY;
  }
  test::GgufWriter writer = test::metadata(kRankSpec);
  test::add_tensors(writer, tensors, kRankSpec.type);
  const test::TinyFile file(writer);
  on_ranks(2, [&](Communicator& communicator) {
    Model model = load(file);
    const auto sequence = RankSequence::make(model, communicator, rank_options()).value();
    const auto made = generate_over_ranks(*sequence, Ids{1, 2, 3}, greedy(4), kGoOn);
    EXPECT_NE(made.status().message().find("weights are damaged"), std::string::npos);
  });
}

TEST(RankSequence, PolicyHoldsOnEveryRank) {
  const Ids prompt = test::random_tokens(5, kRankSpec.vocab, 55);
  RankOptions given = rank_options();
  given.policy.only = {regard::parse_backend("cudnn_attention").value()};
  for (const Found& own : over_ranks(2, prompt, greedy(4), given)) {
    EXPECT_EQ(own.made.status().code(), StatusCode::kNoBackend);
  }
  given.policy.only = {regard::parse_backend("math").value()};
  for (const Found& own : over_ranks(2, prompt, greedy(4), given)) {
    EXPECT_EQ(own.made.value().samples, alone(prompt, greedy(4)).samples);
  }
}

}  // namespace
}  // namespace llm

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/llm/tiny_model.h"

// The same tokens through other steps, backends, caches, pages and threads.

namespace llm {
namespace {

using regard::Dtype;
using test::TinyModel;
using test::TinySetup;
using test::TinySpec;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kPageSizes[] = {0, 1, 16, 64};
// Head dimension 16 is a whole number of vectors, 24 and 10 are none.
const TinySpec kStepSpec{.width = 64, .ffn_width = 80, .heads = 4, .heads_kv = 2, .context = 90};

/// How far logits may be from those of double precision, relative to the largest: twice what was
/// measured, but for f32, whose 7e-7 have room for other instruction sets.
double bound(Dtype weights, Dtype cache) {
  const double of_weights = weights == Dtype::kBf16 ? 2e-2 : 2e-5;
  switch (cache) {
    case Dtype::kBf16: return of_weights + 1.5e-2;
    case Dtype::kF16: return of_weights + 1.6e-3;
    case Dtype::kI8: return of_weights + 1.8e-2;
    case Dtype::kF8E4M3: return of_weights + 1e-1;
    case Dtype::kU4: return of_weights + 2.6e-1;
    default: return of_weights;
  }
}

class Steps : public ::testing::TestWithParam<std::tuple<const char*, Dtype, Dtype>> {
 protected:
  void SetUp() override {
    if (weights() == Dtype::kBf16 && !test::has_bf16()) GTEST_SKIP() << "bf16 needs AVX-512";
  }
  Dtype weights() const { return std::get<1>(GetParam()); }
  Dtype cache() const { return std::get<2>(GetParam()); }
  TinySetup setup(std::int64_t page_size, std::int32_t threads = 2) const {
    TinySetup made;
    made.model.weights = weights();
    made.model.threads = threads;
    made.model.policy.only = {regard::parse_backend(std::get<0>(GetParam())).value()};
    made.cache = {cache(), page_size, 4, 90};
    return made;
  }
  double allowed() const { return bound(weights(), cache()); }
};

TEST_P(Steps, WholePiecesAndSingleTokensAreNearDoublePrecision) {
  const Ids tokens = test::random_tokens(70, kStepSpec.vocab, 21);
  const auto expected = test::reference_logits(kStepSpec, tokens);
  for (const std::int64_t page_size : kPageSizes) {
    for (const std::int32_t threads : {1, 2}) {
      TinyModel tiny(kStepSpec, setup(page_size, threads));
      for (const std::int64_t piece : {70, 17, 3, 1}) {
        const double error = test::relative_error(tiny.logits(tokens, piece), expected);
        EXPECT_LT(error, allowed())
            << "pages of " << page_size << ", " << threads << " threads, pieces of " << piece;
      }
    }
  }
}

TEST_P(Steps, PagesAndThreadsDoNotChangeTheBitsOfFewRows) {
  // From 17 rows on oneDNN divides its sums as it likes.
  const Ids tokens = test::random_tokens(60, kStepSpec.vocab, 22);
  for (const std::int64_t piece : {16, 5, 1}) {
    const auto expected = TinyModel(kStepSpec, setup(0, 1)).logits(tokens, piece);
    for (const std::int64_t page_size : kPageSizes) {
      for (const std::int32_t threads : {1, 2}) {
        TinyModel tiny(kStepSpec, setup(page_size, threads));
        EXPECT_TRUE(tiny.logits(tokens, piece) == expected)
            << "pages of " << page_size << ", " << threads << " threads, pieces of " << piece;
      }
    }
  }
}

TEST_P(Steps, ABatchOfForksHasTheBitsOfEachAlone) {
  const Ids prompt = test::random_tokens(19, kStepSpec.vocab, 23);
  for (const std::int64_t page_size : kPageSizes) {
    TinyModel tiny(kStepSpec, setup(page_size));
    std::vector<std::vector<float>> expected;
    for (unsigned s = 0; s < 4; ++s) {
      const std::int32_t alone = tiny.cache().add();
      tiny.append(alone, prompt);
      expected.push_back(tiny.append(alone, test::random_tokens(20, kStepSpec.vocab, 30 + s), 1));
      tiny.cache().remove(alone);
    }
    Ids sequences{tiny.cache().add()};
    tiny.append(sequences[0], prompt);
    while (sequences.size() < 4) sequences.push_back(tiny.cache().fork(sequences[0]));
    for (std::size_t step = 0; step < 20; ++step) {
      Ids tokens;
      for (unsigned s = 0; s < 4; ++s) {
        tokens.push_back(test::random_tokens(20, kStepSpec.vocab, 30 + s)[step]);
      }
      regard::check(tiny.model().forward("decode", tokens, sequences, tiny.cache()));
      const auto logits = tiny.model().logits(0, 4);
      const auto vocab = static_cast<std::size_t>(kStepSpec.vocab);
      for (std::size_t s = 0; s < 4; ++s) {
        const auto found = logits.subspan(s * vocab, vocab);
        EXPECT_TRUE(std::equal(found.begin(), found.end(), expected[s].begin() + step * vocab))
            << "pages of " << page_size << ", sequence " << s << ", step " << step;
      }
    }
  }
}

TEST_P(Steps, AForkLeavesItsSourceAsItWas) {
  const Ids prompt = test::random_tokens(18, kStepSpec.vocab, 24);
  const Ids next = test::random_tokens(10, kStepSpec.vocab, 25);
  for (const std::int64_t page_size : kPageSizes) {
    TinyModel tiny(kStepSpec, setup(page_size));
    const std::int32_t source = tiny.cache().add();
    tiny.append(source, prompt);
    const std::int32_t fork = tiny.cache().fork(source);
    const auto of_fork = tiny.append(fork, next, 1);
    tiny.append(tiny.cache().fork(source), test::random_tokens(30, kStepSpec.vocab, 26));
    EXPECT_TRUE(tiny.append(source, next, 1) == of_fork) << "pages of " << page_size;
  }
}

TEST_P(Steps, AfterTruncationASequenceIsAsIfItHadNeverBeenLonger) {
  const Ids prompt = test::random_tokens(50, kStepSpec.vocab, 27);
  const Ids next = test::random_tokens(12, kStepSpec.vocab, 28);
  for (const std::int64_t page_size : kPageSizes) {
    for (const std::int64_t length : {0, 1, 16, 17, 49}) {
      TinyModel tiny(kStepSpec, setup(page_size));
      const std::int32_t fresh = tiny.cache().add(), cut = tiny.cache().add();
      const std::span<const std::int32_t> kept(prompt.data(), static_cast<std::size_t>(length));
      tiny.append(fresh, kept, 10);
      tiny.append(cut, kept, 10);
      tiny.append(cut, std::span(prompt).subspan(kept.size()), 7);
      tiny.cache().truncate(cut, length);
      EXPECT_TRUE(tiny.append(cut, next, 4) == tiny.append(fresh, next, 4))
          << "pages of " << page_size << ", truncated to " << length;
    }
  }
}

TEST_P(Steps, AnInterruptedStepLeavesTheSequenceAsItWas) {
  const Ids prompt = test::random_tokens(20, kStepSpec.vocab, 29);
  const Ids next = test::random_tokens(30, kStepSpec.vocab, 31);
  for (const std::int64_t page_size : kPageSizes) {
    TinyModel tiny(kStepSpec, setup(page_size));
    const std::int32_t sequence = tiny.cache().add();
    tiny.append(sequence, prompt);
    regard::Interrupt interrupt;
    interrupt.request();
    const auto status =
        tiny.model().forward("prefill", next, {&sequence, 1}, tiny.cache(), &interrupt);
    EXPECT_EQ(status.code(), regard::StatusCode::kInterrupted);
    EXPECT_EQ(tiny.cache().length(sequence), 20);
    const std::int32_t fork = tiny.cache().fork(sequence);
    const auto of_source = tiny.append(sequence, next, 6);
    EXPECT_TRUE(tiny.append(fork, next, 6) == of_source) << "pages of " << page_size;
    tiny.cache().remove(fork);
    tiny.cache().remove(sequence);
    const std::int32_t fresh = tiny.cache().add();
    tiny.append(fresh, prompt);
    EXPECT_TRUE(tiny.append(fresh, next, 6) == of_source) << "pages of " << page_size;
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, Dtype, Dtype>>& info) {
  const auto& [backend, weights, cache] = info.param;
  return std::string(backend) + "_" + regard::to_string(weights) + "_cache_" +
         regard::to_string(cache);
}
constexpr const char* kBackends[] = {"math", "flash_attention", "efficient_attention"};
INSTANTIATE_TEST_SUITE_P(Weights32, Steps,
                         ::testing::Combine(::testing::ValuesIn(kBackends),
                                            ::testing::Values(Dtype::kF32),
                                            ::testing::Values(Dtype::kF32, Dtype::kBf16,
                                                              Dtype::kF16, Dtype::kI8,
                                                              Dtype::kF8E4M3, Dtype::kU4)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Weights16, Steps,
    ::testing::Combine(::testing::ValuesIn(kBackends), ::testing::Values(Dtype::kBf16),
                       ::testing::Values(Dtype::kF32, Dtype::kBf16, Dtype::kI8)),
    name_of);

TEST(Prepare, ALargerPhaseServesWhatTheSmallerOneDid) {
  TinyModel tiny(kStepSpec);
  const Ids tokens = test::random_tokens(20, kStepSpec.vocab, 32);
  const auto expected = tiny.logits(tokens);
  regard::check(tiny.model().prepare("prefill", 3, 2, tiny.cache()));
  EXPECT_TRUE(tiny.logits(tokens) == expected);
}

TEST(Prepare, AnotherCacheGetsItsOwnPlan) {
  TinyModel tiny(kStepSpec);
  const Ids tokens = test::random_tokens(20, kStepSpec.vocab, 33);
  const auto expected = test::reference_logits(kStepSpec, tokens);
  for (const CacheOptions& options :
       {CacheOptions{.page_size = 16, .capacity = 40}, CacheOptions{.capacity = 200},
        CacheOptions{.dtype = Dtype::kI8, .page_size = 4, .capacity = 30}}) {
    KvCache cache = tiny.model().make_cache(options).value();
    regard::check(prepare_generation(tiny.model(), cache, {}));
    const std::int32_t sequence = cache.add();
    regard::check(prefill(tiny.model(), cache, sequence, tokens, nullptr));
    EXPECT_LT(test::relative_error(tiny.model().logits(0, 20), expected),
              bound(Dtype::kF32, options.dtype));
  }
}

}  // namespace
}  // namespace llm

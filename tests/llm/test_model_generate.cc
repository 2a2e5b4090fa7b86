#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/llm/tiny_model.h"
#include "tools/llm/perplexity.h"

namespace llm {
namespace {

using regard::StatusCode;
using test::TinyModel;
using test::TinySetup;
using test::TinySpec;
using Ids = std::vector<std::int32_t>;

const TinySpec kSpec{.context = 160};

TinySetup setup(std::int64_t page_size, const char* backend = "flash_attention") {
  TinySetup made;
  made.model.threads = 2;
  made.model.policy.only = {regard::parse_backend(backend).value()};
  made.cache = {.page_size = page_size, .sequences = 5, .capacity = 160};
  made.generate.prompt_lookup = 8;
  return made;
}

GenerateOptions options(double temperature, std::int64_t count) {
  GenerateOptions made;
  made.sampling = {.temperature = temperature, .top_k = 5, .seed = 3};
  made.max_new_tokens = count;
  return made;
}

/// What a sequence of its own gives.
Generation generate(TinyModel& tiny, const Ids& prompt, const GenerateOptions& given) {
  const std::int32_t sequence = tiny.cache().add();
  Generation made = tiny.generate(sequence, prompt, given).value();
  tiny.cache().remove(sequence);
  return made;
}

TEST(Generate, GreedyTokensAreThoseOfTheReference) {
  TinyModel tiny(kSpec, setup(16));
  Ids all = test::random_tokens(7, kSpec.vocab, 41);
  const Ids found = generate(tiny, all, options(0.0, 25)).samples[0];
  for (const std::int32_t token : found) {
    const auto logits = test::reference_logits(kSpec, all);
    const auto best = std::max_element(logits.end() - kSpec.vocab, logits.end());
    ASSERT_EQ(token, best - (logits.end() - kSpec.vocab)) << "after " << all.size() << " tokens";
    all.push_back(token);
  }
  EXPECT_EQ(found.size(), 25u);
}

TEST(Generate, DraftsChangeNoToken) {
  std::int64_t accepted = 0, refused = 0;
  for (const char* backend : {"math", "flash_attention", "efficient_attention"}) {
    for (const std::int64_t page_size : {0, 1, 16, 64}) {
      TinyModel tiny(kSpec, setup(page_size, backend));
      for (unsigned seed = 0; seed < 6; ++seed) {
        Ids prompt = test::random_tokens(9, kSpec.vocab, 50 + seed);
        prompt.insert(prompt.end(), prompt.begin(), prompt.end());
        for (const double temperature : {0.0, 0.7}) {
          GenerateOptions given = options(temperature, 100);
          const Generation plain = generate(tiny, prompt, given);
          for (const std::int64_t draft : {1, 3, 8}) {
            given.prompt_lookup = draft;
            const Generation made = generate(tiny, prompt, given);
            EXPECT_EQ(made.samples, plain.samples)
                << backend << ", pages of " << page_size << ", seed " << seed << ", drafts of "
                << draft << ", temperature " << temperature;
            EXPECT_EQ(made.decode_tokens, plain.decode_tokens);
            accepted += made.accepted;
            refused += made.drafted - made.accepted;
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 100);  // else the test says nothing
  EXPECT_GT(refused, 100);
}

TEST(Generate, DraftsLeaveTheSequenceThatPlainStepsLeave) {
  for (const std::int64_t count : {1, 2, 30, 31, 32, 33, 1000}) {
    TinyModel tiny(kSpec, setup(16));
    Ids prompt = test::random_tokens(6, kSpec.vocab, 60);
    prompt.insert(prompt.end(), prompt.begin(), prompt.end());
    const std::int32_t plain = tiny.cache().add(), drafted = tiny.cache().add();
    GenerateOptions given = options(0.0, count);
    const Generation expected = tiny.generate(plain, prompt, given).value();
    given.prompt_lookup = 8;
    const Generation found = tiny.generate(drafted, prompt, given).value();
    EXPECT_EQ(found.samples, expected.samples);
    EXPECT_EQ(found.context_full, expected.context_full);
    EXPECT_EQ(found.context_full, count == 1000);
    EXPECT_EQ(tiny.cache().length(drafted), tiny.cache().length(plain));
    if (count == 1000) {
      // All positions are filled, and one token more is known.
      EXPECT_EQ(tiny.cache().length(plain), 160);
      EXPECT_EQ(expected.samples[0].size(), 160 - prompt.size() + 1);
      continue;
    }
    EXPECT_EQ(expected.samples[0].size(), static_cast<std::size_t>(count));
    const Ids next = test::random_tokens(3, kSpec.vocab, 61);
    const auto error = test::relative_error(tiny.append(drafted, next), tiny.append(plain, next));
    EXPECT_LT(error, 2e-5);
  }
}

TEST(Generate, SampleZeroOfManyIsTheOnlyOneOfOne) {
  for (const std::int64_t page_size : {0, 1, 16, 64}) {
    TinyModel tiny(kSpec, setup(page_size));
    const Ids prompt = test::random_tokens(17, kSpec.vocab, 70);
    GenerateOptions given = options(1.5, 40);
    const Generation alone = generate(tiny, prompt, given);
    given.samples = 5;
    const Generation many = generate(tiny, prompt, given);
    ASSERT_EQ(many.samples.size(), 5u);
    EXPECT_EQ(many.samples[0], alone.samples[0]) << page_size;
    EXPECT_EQ(many.new_tokens, 5 * 40);
    EXPECT_NE(many.samples[1], many.samples[0]);
    // Each is the sample of its own seed.
    given.samples = 1;
    for (std::size_t s = 1; s < 5; ++s) {
      given.sampling.seed = 3 + s;
      EXPECT_EQ(generate(tiny, prompt, given).samples[0], many.samples[s]) << s;
    }
  }
}

TEST(Generate, TheSeedAloneChangesTheTokens) {
  TinyModel tiny(kSpec, setup(16)), again(kSpec, setup(16));
  const Ids prompt = test::random_tokens(5, kSpec.vocab, 71);
  GenerateOptions given = options(1.5, 40);
  const auto first = generate(tiny, prompt, given).samples;
  EXPECT_EQ(generate(tiny, prompt, given).samples, first);
  EXPECT_EQ(generate(again, prompt, given).samples, first);
  given.sampling.seed = 4;
  EXPECT_NE(generate(tiny, prompt, given).samples, first);
}

TEST(Generate, EndsBeforeTheEndOfText) {
  TinyModel tiny(kSpec, setup(16));
  const Ids prompt = test::random_tokens(5, kSpec.vocab, 72);
  GenerateOptions given = options(1.5, 40);
  const Ids all = generate(tiny, prompt, given).samples[0];
  for (const std::int64_t draft : {0, 4}) {
    given.prompt_lookup = draft;
    for (const std::size_t at : {0, 1, 10}) {
      given.end_of_text = all[at];
      const auto first = std::find(all.begin(), all.end(), all[at]);
      EXPECT_EQ(generate(tiny, prompt, given).samples[0], Ids(all.begin(), first));
    }
  }
  // Samples end one by one, and the others go on as if alone.
  given.prompt_lookup = 0;
  given.end_of_text = all[4];
  given.samples = 5;
  const auto many = generate(tiny, prompt, given).samples;
  given.samples = 1;
  for (std::size_t s = 0; s < 5; ++s) {
    given.sampling.seed = 3 + s;
    EXPECT_EQ(generate(tiny, prompt, given).samples[0], many[s]) << s;
  }
}

TEST(Generate, GoesOnWhereItEnded) {
  TinyModel tiny(kSpec, setup(16));
  const Ids prompt = test::random_tokens(12, kSpec.vocab, 73);
  const std::int32_t sequence = tiny.cache().add();
  const Ids first = tiny.generate(sequence, prompt, options(0.0, 20)).value().samples[0];
  // The last token has not been computed.
  ASSERT_EQ(tiny.cache().length(sequence), 12 + 20 - 1);
  Ids next{first.back()};
  const Ids question = test::random_tokens(4, kSpec.vocab, 74);
  next.insert(next.end(), question.begin(), question.end());
  const Generation found = tiny.generate(sequence, next, options(0.0, 20)).value();
  Ids whole(prompt);
  whole.insert(whole.end(), first.begin(), first.end());
  whole.insert(whole.end(), question.begin(), question.end());
  EXPECT_EQ(found.samples[0], generate(tiny, whole, options(0.0, 20)).samples[0]);
}

TEST(Generate, LongPromptsGoInPieces) {
  TinySpec spec = kSpec;
  spec.context = 1300;
  spec.layers = 1;
  TinySetup given = setup(64);
  given.cache.capacity = 1300;
  TinyModel tiny(spec, given);
  for (const std::int64_t length : {511, 512, 513, 1024, 1100}) {
    const Ids prompt = test::random_tokens(length, spec.vocab, 75);
    const Generation made = generate(tiny, prompt, options(0.0, 1));
    const auto logits = test::reference_logits(spec, prompt);
    const std::vector<double> last(logits.end() - spec.vocab, logits.end());
    EXPECT_LT(test::relative_error(made.prompt_logits, last), 2e-5) << length;
  }
}

TEST(Generate, RefusesPromptsThatDoNotFitAndEmptyOnes) {
  TinyModel tiny(kSpec, setup(16));
  const std::int32_t sequence = tiny.cache().add();
  tiny.append(sequence, test::random_tokens(20, kSpec.vocab, 76));
  const auto long_one = tiny.generate(sequence, test::random_tokens(141, kSpec.vocab, 77), {});
  EXPECT_EQ(long_one.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(long_one.status().message(),
            "[generate] the prompt has 141 tokens, and the context has room for 140; raise "
            "--max-seq-length");
  EXPECT_EQ(tiny.generate(sequence, {}, {}).status().message(),
            "[generate] the prompt has no token, expected at least one");
  EXPECT_EQ(tiny.cache().length(sequence), 20);
  // One that just fits has one token.
  const Generation full =
      tiny.generate(sequence, test::random_tokens(140, kSpec.vocab, 77), options(0.0, 9)).value();
  EXPECT_TRUE(full.context_full);
  EXPECT_EQ(full.samples[0].size(), 1u);
}

TEST(Generate, AnInterruptDuringThePromptLeavesTheSequence) {
  TinyModel tiny(kSpec, setup(16));
  const std::int32_t sequence = tiny.cache().add();
  tiny.append(sequence, test::random_tokens(20, kSpec.vocab, 78));
  regard::Interrupt interrupt([](void*) noexcept { return true; });
  const auto made =
      tiny.generate(sequence, test::random_tokens(40, kSpec.vocab, 79), {}, &interrupt);
  EXPECT_EQ(made.status().code(), StatusCode::kInterrupted);
  EXPECT_EQ(tiny.cache().length(sequence), 20);
}

TEST(Generate, AnInterruptBetweenTokensKeepsThoseThatWereMade) {
  TinyModel tiny(kSpec, setup(16));
  const Ids prompt = test::random_tokens(8, kSpec.vocab, 80);
  const Ids all = generate(tiny, prompt, options(0.0, 140)).samples[0];
  for (const std::int64_t samples : {1, 5}) {
    const std::int32_t sequence = tiny.cache().add();
    bool raised = false;
    regard::Interrupt interrupt([](void* state) noexcept { return *static_cast<bool*>(state); },
                                &raised);
    GenerateOptions given = options(0.0, 140);
    given.samples = samples;
    Ids seen;
    const Generation made = llm::generate(
                                tiny.model(), tiny.cache(), sequence, prompt, given,
                                [&](std::int64_t sample, std::int32_t token) {
                                  if (sample == 0) seen.push_back(token);
                                  raised = seen.size() >= 3;
                                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                  return true;
                                },
                                &interrupt)
                                .value();
    EXPECT_TRUE(made.interrupted);
    EXPECT_EQ(made.samples[0], seen);
    EXPECT_GE(seen.size(), 3u);
    EXPECT_LT(seen.size(), 140u);
    EXPECT_EQ(seen, Ids(all.begin(), all.begin() + std::ssize(seen)));
    EXPECT_EQ(tiny.cache().length(sequence), 8 + std::ssize(seen) - 1);
    tiny.cache().remove(sequence);
  }
  // All sequences are free again: the samples' forks were removed.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(tiny.cache().add(), i);
}

TEST(Generate, EndsWhenItsReceiverWantsNoMore) {
  TinyModel tiny(kSpec, setup(16));
  const Ids prompt = test::random_tokens(8, kSpec.vocab, 81);
  for (const std::int64_t samples : {1, 4}) {
    GenerateOptions given = options(1.5, 100);
    given.samples = samples;
    const std::int32_t sequence = tiny.cache().add();
    int calls = 0;
    const Generation made = llm::generate(
                                tiny.model(), tiny.cache(), sequence, prompt, given,
                                [&](std::int64_t, std::int32_t) { return ++calls < 6; }, nullptr)
                                .value();
    EXPECT_EQ(calls, 6);
    EXPECT_EQ(made.new_tokens, 6);
    EXPECT_FALSE(made.interrupted);
    tiny.cache().remove(sequence);
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(tiny.cache().add(), i);
}

TEST(Drafts, AreWhatFollowedTheLastTwoTokens) {
  EXPECT_EQ(draft_by_lookup(Ids{1, 2, 3, 4, 1, 2}, 3), (Ids{3, 4, 1}));
  EXPECT_EQ(draft_by_lookup(Ids{1, 2, 3, 4, 1, 2}, 9), (Ids{3, 4, 1, 2}));
  EXPECT_EQ(draft_by_lookup(Ids{1, 2, 3, 1, 2, 4, 1, 2}, 1), (Ids{4}));  // the last time
  EXPECT_EQ(draft_by_lookup(Ids{7, 7, 7}, 4), (Ids{7}));
  EXPECT_EQ(draft_by_lookup(Ids{1, 2, 3}, 4), Ids());
  EXPECT_EQ(draft_by_lookup(Ids{1, 2, 1, 2}, 0), Ids());
  EXPECT_EQ(draft_by_lookup(Ids{1, 2, 1, 2}, -3), Ids());
  EXPECT_EQ(draft_by_lookup(Ids{1, 2}, 4), Ids());
  EXPECT_EQ(draft_by_lookup(Ids{}, 4), Ids());
}

TEST(Sampler, DrawsByTheProbabilitiesOfTheTopTokens) {
  const std::vector<float> logits{1.0f, 3.0f, -2.0f, 2.0f, 3.0f, 0.0f};
  EXPECT_EQ(argmax(logits), 1);
  EXPECT_EQ(Sampler({.temperature = 0.0}, 0).draw(logits), 1);
  for (const std::int64_t top_k : {0, 1, 3, 4, 6, 100}) {
    const double temperature = 0.9;
    Sampler sampler({temperature, top_k, 5}, 0);
    std::vector<int> counts(logits.size());
    constexpr int kDraws = 200000;
    for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.draw(logits))];
    const std::vector<std::size_t> order{1, 4, 3, 0, 5, 2};  // of equal ones the first counts
    const std::size_t kept = top_k == 0 ? 6 : std::min<std::size_t>(6, top_k);
    double sum = 0.0;
    for (std::size_t i = 0; i < kept; ++i) {
      sum += std::exp(static_cast<double>(logits[order[i]]) / temperature);
    }
    for (std::size_t i = 0; i < 6; ++i) {
      const double p =
          i < kept ? std::exp(static_cast<double>(logits[order[i]]) / temperature) / sum : 0.0;
      // Five standard deviations.
      EXPECT_NEAR(counts[order[i]], kDraws * p, 5.0 * std::sqrt(kDraws * p * (1.0 - p)))
          << "top " << top_k << ", token " << order[i];
    }
  }
}

TEST(Sampler, ColdIsTheLargest) {
  Sampler sampler({1e-300, 0, 5}, 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.draw(std::vector<float>{1.0f, 5.0f, 4.9f}), 1);
}

double reference_loss(const TinySpec& spec, const Ids& tokens) {
  const auto logits = test::reference_logits(spec, tokens);
  double sum = 0.0;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    const double* const row = logits.data() + t * static_cast<std::size_t>(spec.vocab);
    double total = 0.0;
    for (std::int64_t i = 0; i < spec.vocab; ++i) total += std::exp(row[i]);
    sum += std::log(total) - row[tokens[t + 1]];
  }
  return sum;
}

TEST(Perplexity, IsThatOfTheReferenceInEveryWindow) {
  TinySpec spec = kSpec;
  spec.layers = 1;
  spec.context = 1100;
  TinySetup given = setup(64);
  given.cache.capacity = 1100;
  given.cache.sequences = 1;  // a window that stayed would take it
  TinyModel tiny(spec, given);
  const Ids tokens = test::random_tokens(1301, spec.vocab, 90);
  struct Case {
    std::size_t tokens;
    std::int64_t window, limit;
  };
  for (const Case& c : {Case{50, 20, 0},
                        {41, 20, 0},
                        {60, 20, 2},
                        {2, 2, 0},
                        {30, 1100, 0},
                        {1301, 700, 0},
                        {513, 513, 0}}) {
    const auto made =
        measure_perplexity({&tiny.model(), &tiny.cache()}, {}, std::span(tokens).first(c.tokens),
                           {c.window, c.limit}, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    double sum = 0.0;
    std::int64_t scored = 0, windows = 0;
    for (std::size_t at = 0; at + 1 < c.tokens && (c.limit == 0 || windows < c.limit);
         at += static_cast<std::size_t>(c.window), ++windows) {
      const std::size_t end = std::min(c.tokens, at + static_cast<std::size_t>(c.window));
      sum += reference_loss(spec, Ids(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(end)));
      scored += static_cast<std::int64_t>(end - at) - 1;
    }
    EXPECT_EQ(made->windows, windows);
    EXPECT_EQ(made->tokens, scored);
    EXPECT_NEAR(made->mean_loss, sum / static_cast<double>(scored), 1e-5) << c.tokens;
    EXPECT_NEAR(made->value(), std::exp(made->mean_loss), 1e-12);
  }
}

TEST(Perplexity, DivergesFromAReferenceByItsFormatAlone) {
  const Ids tokens = test::random_tokens(100, kSpec.vocab, 92);
  const auto divergence = [&](regard::Dtype dtype) {
    TinySetup given = setup(16);
    TinyModel reference(kSpec, given);
    given.cache.dtype = dtype;
    TinyModel tiny(kSpec, given);
    const auto made =
        measure_perplexity({&tiny.model(), &tiny.cache()}, {&reference.model(), &reference.cache()},
                           tokens, {50, 0}, nullptr);
    EXPECT_EQ(reference.cache().free_sequences(), 5);
    return made.value().mean_divergence;
  };
  EXPECT_LT(std::abs(divergence(regard::Dtype::kF32)), 1e-7);
  EXPECT_GT(divergence(regard::Dtype::kI8), 1e-6);
  EXPECT_LT(divergence(regard::Dtype::kI8), 1e-2);
  EXPECT_GT(divergence(regard::Dtype::kF8E4M3), divergence(regard::Dtype::kI8));
}

TEST(Perplexity, AFailureFreesItsSequence) {
  TinySetup given = setup(16);
  given.cache.sequences = 1;
  TinyModel tiny(kSpec, given);
  const Ids tokens = test::random_tokens(100, kSpec.vocab, 91);
  const auto measure = [&](std::span<const std::int32_t> text, std::int64_t window,
                           regard::Interrupt* interrupt) {
    return measure_perplexity({&tiny.model(), &tiny.cache()}, {}, text, {window, 0}, interrupt);
  };
  regard::Interrupt interrupt;
  interrupt.request();
  EXPECT_EQ(measure(tokens, 50, &interrupt).status().code(), StatusCode::kInterrupted);
  EXPECT_EQ(measure(tokens, 50, nullptr).value().windows, 2);
  EXPECT_EQ(measure(std::span(tokens).first(1), 50, nullptr).status().message(),
            "[perplexity] a window (50) and a text (1 tokens) must have at least 2 tokens");
  EXPECT_EQ(measure(tokens, 0, nullptr).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(measure(tokens, 1, nullptr).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace llm

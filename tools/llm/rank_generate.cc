#include "tools/llm/rank_generate.h"

#include <string>
#include <utility>

#include "tools/llm/clock.h"
#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

/// What rank 0 sends to the others of a token.
struct Drawn {
  std::int32_t token = 0;
  std::int32_t is_finite = 1;  // of its logits
  std::int32_t stops = 0;      // on_token() ended the generation
};

/// The next token, the same on every rank.
Expected<Drawn> draw(RankSequence& sequence, std::span<const float> logits, Sampler* sampler,
                     const GenerateOptions& options, const OnToken& on_token) {
  Drawn drawn;
  if (sequence.rank() == 0) {
    if (check_finite(logits).ok()) {
      const ScopedTimer timer(sequence.model().profile(), Operation::kSampling);
      drawn.token = sampler->draw(logits);
      drawn.stops = drawn.token != options.end_of_text && !on_token(0, drawn.token) ? 1 : 0;
    } else {
      drawn.is_finite = 0;
    }
  }
  if (Status s = sequence.share(std::as_writable_bytes(std::span(&drawn, 1))); !s.ok()) return s;
  if (drawn.is_finite == 0) return damaged_weights();
  return drawn;
}

}  // namespace

Expected<Generation> generate_over_ranks(RankSequence& sequence,
                                         std::span<const std::int32_t> prompt,
                                         const GenerateOptions& options, const OnToken& on_token) {
  if (options.samples != 1) {
    return invalid("generate",
                   "samples (" + std::to_string(options.samples) + ") must be 1 over ranks");
  }
  if (options.prompt_lookup != 0) {
    return invalid("generate", "prompt_lookup (" + std::to_string(options.prompt_lookup) +
                                   ") must be 0 over ranks");
  }
  if (options.max_new_tokens < 1) {
    return invalid("generate", "max_new_tokens (" + std::to_string(options.max_new_tokens) +
                                   ") must be at least 1");
  }
  if (prompt.empty()) return invalid("generate", "the prompt has no token, expected at least one");
  if (Status s = require_room(prompt, sequence.capacity()); !s.ok()) return s;
  Generation made;
  made.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  std::vector<std::int32_t>& tokens = made.samples.emplace_back();
  Sampler sampler(options.sampling, 0);
  auto start = Clock::now();
  Expected<std::span<const float>> logits = sequence.prefill(prompt);
  if (!logits) return logits.status();
  if (sequence.rank() == 0) made.prompt_logits.assign(logits->begin(), logits->end());
  while (true) {
    const Expected<Drawn> drawn = draw(sequence, *logits, &sampler, options, on_token);
    if (!drawn) return drawn.status();
    (tokens.empty() ? made.prefill_seconds : made.decode_seconds) = seconds_since(start);
    if (drawn->token == options.end_of_text) break;
    if (tokens.empty()) start = Clock::now();
    tokens.push_back(drawn->token);
    made.new_tokens = static_cast<std::int64_t>(tokens.size());
    made.decode_tokens = made.new_tokens - 1;
    if (drawn->stops != 0 || made.new_tokens >= options.max_new_tokens) break;
    made.context_full = sequence.length() >= sequence.capacity();
    if (made.context_full) break;
    logits = sequence.decode(drawn->token);
    if (!logits) return logits.status();
  }
  return made;
}

}  // namespace llm

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "regard/status.h"
#include "tools/llm/model.h"
#include "tools/llm/sampler.h"

namespace llm {

inline constexpr std::int64_t kPrefillRows = 512;  // tokens of a prompt that go through at once

struct GenerateOptions {
  Sampling sampling;
  std::int64_t max_new_tokens = 200;
  std::int64_t samples = 1;
  std::int32_t end_of_text = -1;  // ends a sample; not part of it
  // Tokens that a draft takes from an earlier occurrence of the last two; 0: no drafts. One sample
  // alone can have drafts. The tokens are those without.
  std::int64_t prompt_lookup = 0;
};

struct Generation {
  std::vector<std::vector<std::int32_t>> samples;  // new tokens of each
  std::vector<float> prompt_logits;                // of the prompt's last token
  std::int64_t prompt_tokens = 0;                  // that were computed
  std::int64_t new_tokens = 0;                     // of all samples
  std::int64_t decode_tokens = 0;                  // those after the first of each sample
  std::int64_t drafted = 0, accepted = 0;
  double prefill_seconds = 0.0;  // until the first token
  double decode_seconds = 0.0;
  bool context_full = false;  // a sample ended there
  bool interrupted = false;
};

/// Receives each token of a sample as it comes. Returning false ends the generation.
using OnToken = std::function<bool(std::int64_t sample, std::int32_t token)>;

/// Makes what generate() needs of the model and the cache.
regard::Status prepare_generation(Model& model, KvCache& cache, const GenerateOptions& options);

/// Appends `prompt`, at least one token, to a sequence of the cache, then generates. More samples
/// are forks of the sequence, removed at the end. The sequence ends with what was computed of its
/// sample, so that a conversation can go on; after a failure it is as before. Refuses a prompt that
/// the cache has no room for.
regard::Expected<Generation> generate(Model& model, KvCache& cache, std::int32_t sequence,
                                      std::span<const std::int32_t> prompt,
                                      const GenerateOptions& options, const OnToken& on_token,
                                      regard::Interrupt* interrupt);

/// Refuses logits of damaged weights, which have no order, with damaged_weights().
regard::Status check_finite(std::span<const float> logits);
regard::Status damaged_weights();

/// Refuses a prompt that is longer than what is left of the context.
regard::Status require_room(std::span<const std::int32_t> prompt, std::int64_t room);

/// Appends tokens to a sequence in pieces of kPrefillRows. Then Model::logits has the last piece.
regard::Status prefill(Model& model, KvCache& cache, std::int32_t sequence,
                       std::span<const std::int32_t> tokens, regard::Interrupt* interrupt);

/// A draft of what follows `tokens`: what followed the last earlier occurrence of its last two
/// tokens, at most `count`; empty where they occur once.
std::vector<std::int32_t> draft_by_lookup(std::span<const std::int32_t> tokens, std::int64_t count);

}  // namespace llm

#include "tools/llm/generate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tools/llm/clock.h"
#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;
using regard::StatusCode;

/// The samples of one prompt: each draws its tokens and ends by itself.
class Generator {
 public:
  Generator(Model& model, KvCache& cache, const GenerateOptions& options, const OnToken& on_token,
            regard::Interrupt* interrupt)
      : model_(model),
        cache_(cache),
        options_(options),
        on_token_(on_token),
        interrupt_(interrupt) {}

  Expected<Generation> run(std::int32_t sequence, std::span<const std::int32_t> prompt) {
    const auto start = Clock::now();
    const std::int64_t before = cache_.length(sequence);
    if (Status status = prefill(model_, cache_, sequence, prompt, interrupt_); !status.ok()) {
      return status;
    }
    made_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    const std::int64_t last = (made_.prompt_tokens - 1) % kPrefillRows;
    const std::span<const float> logits = model_.logits(last, 1);
    if (Status status = check_finite(logits); !status.ok()) {
      cache_.truncate(sequence, before);
      return status;
    }
    made_.prompt_logits.assign(logits.begin(), logits.end());
    made_.samples.resize(static_cast<std::size_t>(options_.samples));
    history_.assign(prompt.begin(), prompt.end());
    for (std::int64_t s = 0; s < options_.samples; ++s) {
      active_.push_back({s, s == 0 ? sequence : cache_.fork(sequence), {options_.sampling, s}});
    }
    for (Sample& sample : active_) take(&sample, made_.prompt_logits);
    made_.prefill_seconds = seconds_since(start);
    const auto decode_start = Clock::now();
    const Status status = decode();
    made_.decode_seconds = seconds_since(decode_start);
    for (const Sample& sample : active_) {
      if (sample.number != 0) cache_.remove(sample.sequence);
    }
    made_.interrupted = status.code() == StatusCode::kInterrupted;
    if (!status.ok() && !made_.interrupted) {
      cache_.truncate(sequence, before);
      return status;
    }
    for (const auto& tokens : made_.samples) {
      made_.new_tokens += static_cast<std::int64_t>(tokens.size());
    }
    return std::move(made_);
  }

 private:
  struct Sample {
    std::int64_t number;
    std::int32_t sequence;
    Sampler sampler;
    std::int32_t next = 0;  // its last token, which the cache does not have yet
    bool ended = false;
  };

  std::vector<std::int32_t>& tokens_of(const Sample& sample) {
    return made_.samples[static_cast<std::size_t>(sample.number)];
  }

  /// Draws a sample's next token, which may end it.
  void take(Sample* sample, std::span<const float> logits) {
    sample->ended = stopped_;
    if (stopped_) return;
    std::int32_t token = 0;
    {
      const ScopedTimer timer(model_.profile(), Operation::kSampling);
      token = sample->sampler.draw(logits);
    }
    std::vector<std::int32_t>& tokens = tokens_of(*sample);
    sample->ended = token == options_.end_of_text;
    if (sample->ended) return;
    tokens.push_back(token);
    if (sample->number == 0) history_.push_back(token);
    sample->next = token;
    stopped_ = !on_token_(sample->number, token);
    sample->ended = stopped_ || static_cast<std::int64_t>(tokens.size()) >= options_.max_new_tokens;
  }

  void drop_ended() {
    for (const Sample& sample : active_) {
      if (sample.ended && sample.number != 0) cache_.remove(sample.sequence);
    }
    std::erase_if(active_, [](const Sample& sample) { return sample.ended; });
  }

  Status decode() {
    for (drop_ended(); !active_.empty() && !stopped_; drop_ended()) {
      if (interrupt_ != nullptr && interrupt_->check()) {
        return Status(StatusCode::kInterrupted, "[generate] interrupted");
      }
      if (cache_.length(active_.front().sequence) >= cache_.capacity()) {
        made_.context_full = true;
        return Status();
      }
      const std::vector<std::int32_t> draft = next_draft();
      const Status status = draft.empty() ? decode_step() : verify_step(draft);
      if (!status.ok()) return status;
    }
    return Status();
  }

  std::vector<std::int32_t> next_draft() const {
    if (options_.samples != 1 || options_.prompt_lookup == 0) return {};
    const Sample& sample = active_.front();
    const std::int64_t room = cache_.capacity() - cache_.length(sample.sequence) - 1;
    const auto made = static_cast<std::int64_t>(made_.samples[0].size());
    return draft_by_lookup(
        history_, std::min({options_.prompt_lookup, room, options_.max_new_tokens - made - 1}));
  }

  /// One token of each sample.
  Status decode_step() {
    std::vector<std::int32_t> tokens, sequences;
    for (const Sample& sample : active_) {
      tokens.push_back(sample.next);
      sequences.push_back(sample.sequence);
    }
    Status status = model_.forward("decode", tokens, sequences, cache_, interrupt_);
    if (!status.ok()) return status;
    const std::span<const float> logits =
        model_.logits(0, static_cast<std::int64_t>(active_.size()));
    if (status = check_finite(logits); !status.ok()) return status;
    const auto vocab = static_cast<std::size_t>(model_.config().vocab);
    for (std::size_t s = 0; s < active_.size(); ++s) {
      take(&active_[s], logits.subspan(s * vocab, vocab));
      ++made_.decode_tokens;
    }
    return status;
  }

  /// The last token and a draft at once. Tokens are drawn one after the other while they are those
  /// of the draft, so that they are the ones of as many single steps.
  Status verify_step(const std::vector<std::int32_t>& draft) {
    Sample& sample = active_.front();
    std::vector<std::int32_t> tokens{sample.next};
    tokens.insert(tokens.end(), draft.begin(), draft.end());
    const std::int64_t before = cache_.length(sample.sequence);
    Status status = model_.forward("verify", tokens, {&sample.sequence, 1}, cache_, interrupt_);
    if (!status.ok()) return status;
    const auto rows = static_cast<std::int64_t>(tokens.size());
    const std::span<const float> logits = model_.logits(0, rows);
    if (status = check_finite(logits); !status.ok()) return status;
    const auto vocab = static_cast<std::size_t>(model_.config().vocab);
    std::int64_t kept = 0;
    while (kept < rows) {
      take(&sample, logits.subspan(static_cast<std::size_t>(kept) * vocab, vocab));
      ++made_.decode_tokens;
      ++kept;
      if (sample.ended || kept == rows || sample.next != tokens[static_cast<std::size_t>(kept)]) {
        break;
      }
    }
    made_.drafted += rows - 1;
    made_.accepted += kept - 1;
    cache_.truncate(sample.sequence, before + kept);
    return status;
  }

  Model& model_;
  KvCache& cache_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  regard::Interrupt* interrupt_;
  Generation made_;
  std::vector<Sample> active_;
  std::vector<std::int32_t> history_;  // of the first sample, prompt included
  bool stopped_ = false;
};

}  // namespace

std::vector<std::int32_t> draft_by_lookup(std::span<const std::int32_t> tokens,
                                          std::int64_t count) {
  const std::size_t n = tokens.size();
  if (count <= 0 || n < 3) return {};
  for (std::size_t at = n - 2; at-- > 0;) {
    if (tokens[at] != tokens[n - 2] || tokens[at + 1] != tokens[n - 1]) continue;
    const auto follow = tokens.subspan(at + 2);
    const std::size_t length = std::min(follow.size(), static_cast<std::size_t>(count));
    return {follow.begin(), follow.begin() + static_cast<std::ptrdiff_t>(length)};
  }
  return {};
}

Status damaged_weights() {
  return invalid("generate",
                 "a logit is infinite or not a number, expected finite ones: the model's "
                 "weights are damaged");
}

Status check_finite(std::span<const float> logits) {
  if (std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    return Status();
  }
  return damaged_weights();
}

Status require_room(std::span<const std::int32_t> prompt, std::int64_t room) {
  if (static_cast<std::int64_t>(prompt.size()) <= room) return Status();
  return invalid("generate", "the prompt has " + std::to_string(prompt.size()) +
                                 " tokens, and the context has room for " + std::to_string(room) +
                                 "; raise --max-seq-length");
}

Status prefill(Model& model, KvCache& cache, std::int32_t sequence,
               std::span<const std::int32_t> tokens, regard::Interrupt* interrupt) {
  const std::int64_t before = cache.length(sequence);
  if (Status s = require_room(tokens, cache.capacity() - before); !s.ok()) return s;
  for (std::size_t at = 0; at < tokens.size(); at += kPrefillRows) {
    const auto piece = tokens.subspan(at, std::min<std::size_t>(kPrefillRows, tokens.size() - at));
    Status status = model.forward("prefill", piece, {&sequence, 1}, cache, interrupt);
    if (status.ok() && interrupt != nullptr && interrupt->check()) {
      status = Status(StatusCode::kInterrupted, "[generate] interrupted");
    }
    if (status.ok()) continue;
    cache.truncate(sequence, before);
    return status;
  }
  return Status();
}

Status prepare_generation(Model& model, KvCache& cache, const GenerateOptions& options) {
  if (Status s = model.prepare("prefill", 1, std::min(kPrefillRows, cache.capacity()), cache);
      !s.ok())
    return s;
  if (Status s = model.prepare("decode", options.samples, 1, cache); !s.ok()) return s;
  if (options.prompt_lookup == 0 || options.samples != 1) return Status();
  return model.prepare("verify", 1, options.prompt_lookup + 1, cache);
}

Expected<Generation> generate(Model& model, KvCache& cache, std::int32_t sequence,
                              std::span<const std::int32_t> prompt, const GenerateOptions& options,
                              const OnToken& on_token, regard::Interrupt* interrupt) {
  if (prompt.empty()) {
    return invalid("generate", "the prompt has no token, expected at least one");
  }
  if (options.samples < 1 || options.samples - 1 > cache.free_sequences()) {
    return invalid("generate", "samples (" + std::to_string(options.samples) + ") must be 1 to " +
                                   std::to_string(cache.free_sequences() + 1) +
                                   ", for which the cache has sequences");
  }
  if (options.max_new_tokens < 1) {
    return invalid("generate", "max_new_tokens (" + std::to_string(options.max_new_tokens) +
                                   ") must be at least 1");
  }
  return Generator(model, cache, options, on_token, interrupt).run(sequence, prompt);
}

}  // namespace llm

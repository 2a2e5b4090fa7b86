#include "tools/llm/perplexity.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tools/llm/generate.h"
#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

// Logits of so many tokens at once: 128 rows of 49,152 are 25 MB.
constexpr std::int64_t kLogitRows = 128;

/// log of the sum of exp(x).
double log_sum(std::span<const float> logits) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - max);
  return std::log(sum) + max;
}

/// The divergence of the softmax of `logits` from that of `expected`.
double divergence(std::span<const float> expected, std::span<const float> logits) {
  const double shift = log_sum(logits) - log_sum(expected);
  const double norm = log_sum(expected);
  double sum = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double difference = static_cast<double>(expected[i]) - logits[i] + shift;
    sum += std::exp(expected[i] - static_cast<float>(norm)) * difference;
  }
  return sum;
}

class Scorer {
 public:
  Scorer(const ScoredModel& scored, const ScoredModel& reference, regard::Interrupt* interrupt)
      : scored_(scored), reference_(reference), interrupt_(interrupt) {}

  Status score(std::span<const std::int32_t> window, Perplexity* sums) {
    const std::int32_t sequence = scored_.cache->add();
    const std::int32_t expected = reference_.model != nullptr ? reference_.cache->add() : 0;
    Status status = score_pieces(window, sequence, expected, sums);
    scored_.cache->remove(sequence);  // after a failure, too
    if (reference_.model != nullptr) reference_.cache->remove(expected);
    ++sums->windows;
    return status;
  }

 private:
  Status score_pieces(std::span<const std::int32_t> window, std::int32_t sequence,
                      std::int32_t expected, Perplexity* sums) {
    for (std::size_t at = 0; at < window.size(); at += kPrefillRows) {
      const auto piece =
          window.subspan(at, std::min(static_cast<std::size_t>(kPrefillRows), window.size() - at));
      const auto next = window.subspan(at + 1, std::min(piece.size(), window.size() - at - 1));
      Status status = prefill(*scored_.model, *scored_.cache, sequence, piece, interrupt_);
      if (status.ok() && reference_.model != nullptr) {
        status = prefill(*reference_.model, *reference_.cache, expected, piece, interrupt_);
      }
      if (!status.ok()) return status;
      add(next, sums);
      sums->tokens += static_cast<std::int64_t>(next.size());
    }
    return Status();
  }

  /// The rows of the last pieces; `next` has the token behind each.
  void add(std::span<const std::int32_t> next, Perplexity* sums) {
    const auto vocab = static_cast<std::size_t>(scored_.model->config().vocab);
    const auto rows = static_cast<std::int64_t>(next.size());
    double loss = 0.0, divergences = 0.0;
    for (std::int64_t first = 0; first < rows; first += kLogitRows) {
      const std::int64_t count = std::min(kLogitRows, rows - first);
      const std::span<const float> logits = scored_.model->logits(first, count);
      std::span<const float> expected;
      if (reference_.model != nullptr) expected = reference_.model->logits(first, count);
#pragma omp parallel for reduction(+ : loss, divergences)
      for (std::int64_t r = 0; r < count; ++r) {
        const auto row = logits.subspan(static_cast<std::size_t>(r) * vocab, vocab);
        const std::int32_t token = next[static_cast<std::size_t>(first + r)];
        loss += log_sum(row) - row[static_cast<std::size_t>(token)];
        if (!expected.empty()) {
          divergences +=
              divergence(expected.subspan(static_cast<std::size_t>(r) * vocab, vocab), row);
        }
      }
    }
    sums->mean_loss += loss;
    sums->mean_divergence += divergences;
  }

  ScoredModel scored_, reference_;
  regard::Interrupt* interrupt_;
};

}  // namespace

double Perplexity::value() const { return std::exp(mean_loss); }

Expected<Perplexity> measure_perplexity(const ScoredModel& scored, const ScoredModel& reference,
                                        std::span<const std::int32_t> tokens,
                                        const Windows& windows, regard::Interrupt* interrupt) {
  if (windows.tokens < 2 || tokens.size() < 2) {
    return invalid("perplexity", "a window (" + std::to_string(windows.tokens) + ") and a text (" +
                                     std::to_string(tokens.size()) +
                                     " tokens) must have at least 2 tokens");
  }
  Scorer scorer(scored, reference, interrupt);
  Perplexity made;
  while (tokens.size() > 1 && (windows.limit == 0 || made.windows < windows.limit)) {
    const auto window =
        tokens.first(std::min(tokens.size(), static_cast<std::size_t>(windows.tokens)));
    tokens = tokens.subspan(window.size());
    if (Status status = scorer.score(window, &made); !status.ok()) return status;
  }
  made.mean_loss /= static_cast<double>(made.tokens);
  made.mean_divergence /= static_cast<double>(made.tokens);
  if (!std::isfinite(made.mean_loss) || !std::isfinite(made.mean_divergence)) {
    return invalid("perplexity",
                   "the loss is infinite or not a number, expected a finite one: the model's "
                   "weights are damaged");
  }
  return made;
}

}  // namespace llm

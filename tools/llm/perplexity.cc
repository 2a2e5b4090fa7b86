#include "tools/llm/perplexity.h"

#include <algorithm>
#include <cmath>

#include "tools/llm/generate.h"

namespace llm {
namespace {

// Logits of so many tokens at once: 128 rows of 49,152 are 25 MB.
constexpr std::int64_t kLogitRows = 128;

/// -log of the softmax of `logits` at `token`.
double loss_of(std::span<const float> logits, std::int32_t token) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  return std::log(sum) + max - logits[static_cast<std::size_t>(token)];
}

/// Losses of the tokens that follow rows of the last forward(); `next` has one for each row.
double sum_losses(Model& model, std::span<const std::int32_t> next) {
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  const auto rows = static_cast<std::int64_t>(next.size());
  double sum = 0.0;
  for (std::int64_t first = 0; first < rows; first += kLogitRows) {
    const std::int64_t count = std::min(kLogitRows, rows - first);
    const std::span<const float> logits = model.logits(first, count);
#pragma omp parallel for reduction(+ : sum)
    for (std::int64_t r = 0; r < count; ++r) {
      sum += loss_of(logits.subspan(static_cast<std::size_t>(r) * vocab, vocab),
                     next[static_cast<std::size_t>(first + r)]);
    }
  }
  return sum;
}

}  // namespace

double Perplexity::value() const { return std::exp(mean_loss); }

regard::Expected<Perplexity> measure_perplexity(Model& model, KvCache& cache,
                                                std::span<const std::int32_t> tokens,
                                                std::int64_t window, std::int64_t limit,
                                                regard::Interrupt* interrupt) {
  Perplexity made;
  double sum = 0.0;
  while (tokens.size() > 1 && (limit == 0 || made.windows < limit)) {
    const auto all = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(window)));
    tokens = tokens.subspan(all.size());
    const std::int32_t sequence = cache.add();
    for (std::size_t at = 0; at < all.size(); at += kPrefillRows) {
      const auto piece = all.subspan(at, std::min<std::size_t>(kPrefillRows, all.size() - at));
      const auto next = all.subspan(at + 1, std::min(piece.size(), all.size() - at - 1));
      if (auto status = prefill(model, cache, sequence, piece, interrupt); !status.ok()) {
        return status;
      }
      sum += sum_losses(model, next);
      made.tokens += static_cast<std::int64_t>(next.size());
    }
    cache.remove(sequence);
    ++made.windows;
  }
  made.mean_loss = made.tokens > 0 ? sum / static_cast<double>(made.tokens) : 0.0;
  return made;
}

}  // namespace llm

#pragma once

#include <cstdint>
#include <span>

#include "tools/llm/model.h"

namespace llm {

/// A model and a cache of its own, with the phase "prefill" prepared for kPrefillRows.
struct ScoredModel {
  Model* model = nullptr;
  KvCache* cache = nullptr;
};

struct Perplexity {
  double mean_loss = 0.0;  // -log p of a token given those before it in its window, natural log
  double mean_divergence = 0.0;  // Kullback-Leibler, from the reference's distribution
  std::int64_t tokens = 0;       // that were scored: all of a window but its first
  std::int64_t windows = 0;
  double value() const;  // exp(mean_loss)
};

struct Windows {
  std::int64_t tokens = 2048;  // of one
  std::int64_t limit = 0;      // of them; 0: all
};

/// Scores windows of a text that follow each other without overlap. With a reference model, the
/// divergence of the next token's distribution from the reference's, too. Refuses windows and texts
/// of less than two tokens. The caches have room for one more sequence, which is removed again.
regard::Expected<Perplexity> measure_perplexity(const ScoredModel& scored,
                                                const ScoredModel& reference,
                                                std::span<const std::int32_t> tokens,
                                                const Windows& windows,
                                                regard::Interrupt* interrupt);

}  // namespace llm

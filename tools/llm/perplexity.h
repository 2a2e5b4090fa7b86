#pragma once

#include <cstdint>
#include <span>

#include "tools/llm/model.h"

namespace llm {

struct Perplexity {
  double mean_loss = 0.0;   // -log p of a token given those before it in its window, natural log
  std::int64_t tokens = 0;  // that were scored: all of a window but its first
  std::int64_t windows = 0;
  double value() const;  // exp(mean_loss)
};

/// Scores windows of `window` tokens that follow each other without overlap, at most `limit` of
/// them (0: all). The phase "prefill" must be prepared for kPrefillRows.
regard::Expected<Perplexity> measure_perplexity(Model& model, KvCache& cache,
                                                std::span<const std::int32_t> tokens,
                                                std::int64_t window, std::int64_t limit,
                                                regard::Interrupt* interrupt);

}  // namespace llm

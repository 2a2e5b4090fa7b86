#include "tools/llm/profile.h"

#include <fmt/format.h>

namespace llm {

std::string Profile::to_string() const {
  static constexpr const char* kNames[kOperations] = {
      "embedding", "norms", "matrix products", "attention", "SwiGLU", "logits", "sampling"};
  double total = 0.0;
  for (const Entry& entry : entries_) total += entry.seconds;
  std::string text =
      fmt::format("{:<16} {:>10} {:>8} {:>7}\n", "operation", "time ms", "calls", "share");
  for (std::size_t i = 0; i < kOperations; ++i) {
    const Entry& entry = entries_[i];
    if (entry.calls == 0) continue;
    text += fmt::format("{:<16} {:>10.1f} {:>8} {:>5.1f} %\n", kNames[i], 1e3 * entry.seconds,
                        entry.calls, 100.0 * entry.seconds / total);
  }
  return text;
}

}  // namespace llm

#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "regard/status.h"

namespace llm {

/// Splits a text into the words that BPE merges within: "smollm", each digit alone, then GPT-2's
/// pattern. Calls on several threads at a time are fine.
class PreTokenizer {
 public:
  /// An error that names what is known for a name that is not.
  static regard::Expected<PreTokenizer> named(std::string_view name);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Appends the words of a text, which is UTF-8. Together they are the text.
  regard::Status split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Pattern;
  explicit PreTokenizer(std::unique_ptr<Pattern> pattern) noexcept;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace llm

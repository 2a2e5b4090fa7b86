#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llm {

/// Finds the spellings of special tokens in a text: the first place, and there the longest.
class SpecialTokens {
 public:
  struct Found {
    std::size_t at = 0;
    std::size_t length = 0;
    std::int32_t token = 0;
  };

  SpecialTokens() = default;
  explicit SpecialTokens(std::vector<std::pair<std::string, std::int32_t>> spellings);

  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::pair<std::string, std::int32_t>> spellings_;  // sorted
  std::string first_bytes_;                                      // each once
};

}  // namespace llm

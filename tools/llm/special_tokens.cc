#include "tools/llm/special_tokens.h"

#include <algorithm>

namespace llm {

SpecialTokens::SpecialTokens(std::vector<std::pair<std::string, std::int32_t>> spellings)
    : spellings_(std::move(spellings)) {
  std::erase_if(spellings_, [](const auto& spelling) { return spelling.first.empty(); });
  std::sort(spellings_.begin(), spellings_.end());
  for (const auto& [text, token] : spellings_) {
    if (first_bytes_.empty() || first_bytes_.back() != text.front()) first_bytes_ += text.front();
  }
}

std::optional<SpecialTokens::Found> SpecialTokens::find(std::string_view text,
                                                        std::size_t from) const {
  for (std::size_t at = text.find_first_of(first_bytes_, from); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1)) {
    // Spellings that begin as the text does from `at` are a range of the sorted ones, which narrows
    // with each byte; the first of a range is as long as the prefix, or longer.
    auto begin = spellings_.begin();
    auto end = spellings_.end();
    std::optional<Found> longest;
    for (std::size_t length = 0; at + length < text.size() && begin != end; ++length) {
      const auto byte = static_cast<unsigned char>(text[at + length]);
      const auto byte_of = [length](const auto& s) -> int {
        return length < s.first.size() ? static_cast<unsigned char>(s.first[length]) : -1;
      };
      begin = std::partition_point(begin, end, [&](const auto& s) { return byte_of(s) < byte; });
      end = std::partition_point(begin, end, [&](const auto& s) { return byte_of(s) == byte; });
      if (begin != end && begin->first.size() == length + 1) {
        longest = Found{at, length + 1, begin->second};
      }
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace llm

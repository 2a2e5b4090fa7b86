#pragma once

#include <charconv>
#include <concepts>
#include <string_view>
#include <system_error>
#include <vector>

namespace regard {

/// Reads the whole of `text` as a number; false on anything left over, and on overflow.
template <class T>
requires(std::integral<T> || std::floating_point<T>) bool parse_number(std::string_view text,
                                                                       T* out) noexcept {
  const char* end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, *out);
  return result.ec == std::errc() && result.ptr == end;
}

/// Calls f(part) for each part of `text` between separators ("" has one empty part) until f is
/// false; returns whether it never was.
template <class F>
bool for_each_part(std::string_view text, char separator, F&& f) {
  while (true) {
    const std::size_t at = text.find(separator);
    if (!f(text.substr(0, at))) return false;
    if (at == std::string_view::npos) return true;
    text.remove_prefix(at + 1);
  }
}

/// "1,2,3"
template <class T>
bool parse_numbers(std::string_view text, std::vector<T>* out) {
  out->clear();
  return for_each_part(text, ',', [&](std::string_view part) {
    T value{};
    if (!parse_number(part, &value)) return false;
    out->push_back(value);
    return true;
  });
}

}  // namespace regard

#pragma once

#include <charconv>
#include <string>

namespace regard {

/// The shortest text that reads back as x.
inline std::string number_text(double x) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), x);
  return std::string(text, result.ptr);
}

}  // namespace regard

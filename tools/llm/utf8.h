#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace llm {

enum class Utf8State {
  kWhole,    // a character
  kPartial,  // the text ends inside a character that was right so far
  kInvalid   // no character begins so
};

struct Utf8Char {
  Utf8State state = Utf8State::kWhole;
  std::size_t length = 0;  // bytes of the character, or of what one U+FFFD stands for
  char32_t code = 0;       // of a whole character
};

/// The character at a place of a text, which has one there (at < text.size()). Overlong forms,
/// surrogates and codes above U+10FFFF are invalid; one invalid sequence is its longest part that
/// begins a character, as Unicode recommends and Python does.
Utf8Char read_utf8(std::string_view text, std::size_t at) noexcept;

void append_utf8(std::string& out, char32_t code);

}  // namespace llm

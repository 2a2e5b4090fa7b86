#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// GPT-2's spelling of bytes: in its vocabularies every byte is one printable character. Bytes that
// Latin-1 prints stand for themselves; the others are U+0100, U+0101, ... in their order.

namespace llm {

constexpr bool spells_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

/// The characters of bytes 0 to 255.
constexpr std::array<char32_t, 256> byte_spellings() {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    out[byte] = spells_itself(byte) ? byte : next++;
  }
  return out;
}

/// The bytes that a token's spelling stands for; none if a character of it is no byte's.
std::optional<std::string> spelled_bytes(std::string_view spelling);

}  // namespace llm

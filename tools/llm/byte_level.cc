#include "tools/llm/byte_level.h"

#include "tools/llm/utf8.h"

namespace llm {
namespace {

constexpr int kSpellings = 0x100 + 68;  // codes below this, 68 bytes being spelled by others

/// Bytes by the codes that spell them; -1: none.
constexpr std::array<int, kSpellings> bytes_by_code() {
  std::array<int, kSpellings> out{};
  out.fill(-1);
  constexpr std::array<char32_t, 256> kCodes = byte_spellings();
  for (unsigned byte = 0; byte < 256; ++byte) out[kCodes[byte]] = static_cast<int>(byte);
  return out;
}

}  // namespace

std::optional<std::string> spelled_bytes(std::string_view spelling) {
  static constexpr std::array<int, kSpellings> kBytes = bytes_by_code();
  std::string out;
  for (std::size_t at = 0; at < spelling.size();) {
    const Utf8Char c = read_utf8(spelling, at);
    if (c.state != Utf8State::kWhole || c.code >= kSpellings || kBytes[c.code] < 0) {
      return std::nullopt;
    }
    out += static_cast<char>(kBytes[c.code]);
    at += c.length;
  }
  return out;
}

}  // namespace llm

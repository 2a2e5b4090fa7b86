#include "tools/llm/utf8.h"

#include "tools/llm/tokenizer.h"

namespace llm {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

struct Lead {
  std::size_t length = 0;  // 0: no character begins so
  char32_t bits = 0;
  unsigned min = 0x80;  // of the second byte
  unsigned max = 0xbf;
};

Lead lead_of(unsigned byte) {
  if (byte < 0x80) return {1, byte};
  if (byte < 0xc2) return {};  // a continuation, or overlong
  if (byte < 0xe0) return {2, byte & 0x1f};
  if (byte == 0xe0) return {3, byte & 0x0f, 0xa0};
  if (byte == 0xed) return {3, byte & 0x0f, 0x80, 0x9f};  // no surrogates
  if (byte < 0xf0) return {3, byte & 0x0f};
  if (byte == 0xf0) return {4, byte & 0x07, 0x90};
  if (byte < 0xf4) return {4, byte & 0x07};
  if (byte == 0xf4) return {4, byte & 0x07, 0x80, 0x8f};  // no code above U+10FFFF
  return {};
}

}  // namespace

Utf8Char read_utf8(std::string_view text, std::size_t at) noexcept {
  Lead lead = lead_of(byte_at(text, at));
  if (lead.length == 0) return {Utf8State::kInvalid, 1, 0};
  char32_t code = lead.bits;
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (at + i == text.size()) return {Utf8State::kPartial, i, 0};
    const unsigned byte = byte_at(text, at + i);
    if (byte < lead.min || byte > lead.max) return {Utf8State::kInvalid, i, 0};
    lead.min = 0x80;
    lead.max = 0xbf;
    code = code << 6 | (byte & 0x3f);
  }
  return {Utf8State::kWhole, lead.length, code};
}

void append_utf8(std::string& out, char32_t code) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
    return;
  }
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

std::string Utf8Stream::add(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Char c = read_utf8(pending_, at);
    if (c.state == Utf8State::kPartial) break;
    if (c.state == Utf8State::kWhole) {
      out.append(pending_, at, c.length);
    } else {
      out += kReplacement;
    }
    at += c.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  // What waits is the beginning of one character.
  const bool waits = !pending_.empty();
  pending_.clear();
  return waits ? std::string(kReplacement) : std::string();
}

}  // namespace llm

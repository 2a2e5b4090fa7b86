#include "tools/regard/safetensors_json.h"

#include <cstdio>
#include <limits>
#include <utility>

#include "tools/regard/safetensors.h"

namespace regard::safetensors {
namespace {

/// Length of the UTF-8 sequence at the start of `text`, 0 when it is not one (RFC 3629).
std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  // The second byte rules out overlong forms, surrogates and values above U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

void append_utf8(std::uint32_t code, std::string* out) {
  const auto push = [&](std::uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xc0u | (code >> 6));
    push(0x80u | (code & 0x3fu));
  } else if (code < 0x10000) {
    push(0xe0u | (code >> 12));
    push(0x80u | ((code >> 6) & 0x3fu));
    push(0x80u | (code & 0x3fu));
  } else {
    push(0xf0u | (code >> 18));
    push(0x80u | ((code >> 12) & 0x3fu));
    push(0x80u | ((code >> 6) & 0x3fu));
    push(0x80u | (code & 0x3fu));
  }
}

bool is_high_surrogate(std::uint32_t code) { return code >= 0xd800 && code < 0xdc00; }
bool is_low_surrogate(std::uint32_t code) { return code >= 0xdc00 && code < 0xe000; }

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(byte));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

void JsonReader::skip_space() noexcept {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    ++pos_;
  }
}

Status JsonReader::error(const std::string& what, StatusCode code) const {
  const std::int64_t at = offset_ + static_cast<std::int64_t>(pos_);
  return Status(code, "[safetensors] header, byte " + std::to_string(at) + ": " + what);
}

Status JsonReader::unexpected(const char* expected) const {
  const std::string found =
      pos_ < text_.size() ? quote(text_.substr(pos_, 1)) : std::string("the end of the header");
  return error("found " + found + ", expected " + expected);
}

Status JsonReader::expect(char c, const char* what) {
  return accept(c) ? Status() : unexpected(what);
}

bool JsonReader::accept(char c) noexcept {
  skip_space();
  if (pos_ >= text_.size() || text_[pos_] != c) return false;
  ++pos_;
  return true;
}

bool JsonReader::at_end() noexcept {
  skip_space();
  return pos_ == text_.size();
}

Expected<std::int64_t> JsonReader::integer(const char* what) {
  skip_space();
  const std::size_t begin = pos_;
  std::int64_t value = 0;
  bool fits = true;
  while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') {
    fits = fits && !__builtin_mul_overflow(value, std::int64_t{10}, &value) &&
           !__builtin_add_overflow(value, std::int64_t{text_[pos_] - '0'}, &value);
    ++pos_;
  }
  if (pos_ == begin) return unexpected(what);
  const std::string_view digits = text_.substr(begin, pos_ - begin);
  if (digits.size() > 1 && digits.front() == '0') {
    return error("found " + quote(digits) + ", expected a number without leading zeros");
  }
  if (!fits) {
    const std::string max = std::to_string(std::numeric_limits<std::int64_t>::max());
    return error("found " + quote(digits) + ", expected at most " + max, StatusCode::kOverflow);
  }
  return value;
}

Expected<std::uint32_t> JsonReader::hex4() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i, ++pos_) {
    const char c = pos_ < text_.size() ? text_[pos_] : '\0';
    std::uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      digit = static_cast<std::uint32_t>((c | 0x20) - 'a') + 10u;
    } else {
      return unexpected("four hexadecimal digits");
    }
    code = code * 16 + digit;
  }
  return code;
}

Status JsonReader::escape(std::string* out) {
  ++pos_;  // the backslash
  if (pos_ >= text_.size()) return unexpected("an escape");
  const char c = text_[pos_];
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
    out->push_back(kValues[i]);
    ++pos_;
    return {};
  }
  if (c != 'u') return unexpected("one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
  ++pos_;
  Expected<std::uint32_t> code = hex4();
  if (!code) return code.status();
  std::uint32_t value = *code;
  if (is_low_surrogate(value)) return error("a low surrogate without a high one before it");
  if (is_high_surrogate(value)) {
    if (text_.substr(pos_, 2) != "\\u") return unexpected("the low half of a surrogate pair");
    pos_ += 2;
    Expected<std::uint32_t> low = hex4();
    if (!low) return low.status();
    if (!is_low_surrogate(*low)) return error("a high surrogate without a low one after it");
    value = 0x10000u + ((value - 0xd800u) << 10) + (*low - 0xdc00u);
  }
  append_utf8(value, out);
  return {};
}

Status JsonReader::utf8_sequence(std::string* out) {
  const std::size_t length = utf8_length(text_.substr(pos_));
  if (length == 0) return unexpected("UTF-8");
  if (static_cast<unsigned char>(text_[pos_]) < 0x20) return unexpected("an escaped character");
  out->append(text_.substr(pos_, length));
  pos_ += length;
  return {};
}

Expected<std::string> JsonReader::string(const char* what) {
  if (Status status = expect('"', what); !status) return status;
  std::string out;
  while (true) {
    if (pos_ >= text_.size()) return unexpected("the closing quote of a string");
    if (text_[pos_] == '"') {
      ++pos_;
      return out;
    }
    if (Status status = text_[pos_] == '\\' ? escape(&out) : utf8_sequence(&out); !status) {
      return status;
    }
  }
}

}  // namespace regard::safetensors

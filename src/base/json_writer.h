#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/utf8.h"

// Emits JSON text; commas are put where they belong, strings are escaped, and bytes that are not
// UTF-8 become U+FFFD.

namespace regard {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name) {
    separate();
    quote(name);
    out_ += ':';
    need_comma_ = false;
    return *this;
  }
  JsonWriter& value(std::string_view text) {
    separate();
    quote(text);
    return done();
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool b) { return raw(b ? "true" : "false"); }
  JsonWriter& value(std::int64_t n) { return raw(std::to_string(n)); }
  JsonWriter& value(std::int32_t n) { return raw(std::to_string(n)); }
  JsonWriter& value(std::uint64_t n) { return raw(std::to_string(n)); }
  /// The shortest text that reads back as x; null for NaN and infinities, which JSON lacks.
  JsonWriter& value(double x) {
    if (!std::isfinite(x)) return null();
    char text[32];
    const auto result = std::to_chars(text, text + sizeof(text), x);
    return raw(std::string_view(text, static_cast<std::size_t>(result.ptr - text)));
  }
  JsonWriter& null() { return raw("null"); }
  /// Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    separate();
    out_ += json;
    return done();
  }

  const std::string& str() const { return out_; }

 private:
  JsonWriter& open(char bracket) {
    separate();
    out_ += bracket;
    need_comma_ = false;
    return *this;
  }
  JsonWriter& close(char bracket) {
    out_ += bracket;
    return done();
  }
  JsonWriter& done() {
    need_comma_ = true;
    return *this;
  }
  void separate() {
    if (need_comma_) out_ += ',';
  }
  void quote(std::string_view text) {
    out_ += '"';
    for (std::size_t length = 0; !text.empty(); text.remove_prefix(length)) {
      const char c = text.front();
      length = utf8_length(text);
      if (length == 0) {
        out_ += "\\ufffd";
        length = 1;
      } else if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escape[8];
        std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c) & 0xffu);
        out_ += escape;
      } else {
        out_ += text.substr(0, length);
      }
    }
    out_ += '"';
  }

  std::string out_;
  bool need_comma_ = false;
};

}  // namespace regard

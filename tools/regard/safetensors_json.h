#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "regard/status.h"

namespace regard::safetensors {

/// Reads the JSON that a header may contain, one token at a time: objects, arrays, strings and
/// unsigned integers. The grammar of a header has a fixed depth, so nothing here recurses and deep
/// JSON is refused at its first bracket that does not belong.
class JsonReader {
 public:
  /// `offset` is the position of `text` in the file, for messages.
  JsonReader(std::string_view text, std::int64_t offset) noexcept : text_(text), offset_(offset) {}

  /// Consumes `c` after white space, or reports that `what` was expected.
  Status expect(char c, const char* what);
  /// Consumes `c` after white space when it is next.
  bool accept(char c) noexcept;
  /// True when only white space is left.
  bool at_end() noexcept;

  Expected<std::string> string(const char* what);
  /// Digits without sign, fraction, exponent or leading zero; at most INT64_MAX.
  Expected<std::int64_t> integer(const char* what);

  /// An error at the current position: "[safetensors] header byte 17: found '[', expected ...".
  Status unexpected(const char* expected) const;

 private:
  void skip_space() noexcept;
  Status error(const std::string& what, StatusCode code = StatusCode::kInvalidArgument) const;
  Status escape(std::string* out);
  Expected<std::uint32_t> hex4();
  Status utf8_sequence(std::string* out);

  std::string_view text_;
  std::size_t pos_ = 0;
  std::int64_t offset_;
};

/// True when `text` is UTF-8 without surrogates and overlong forms.
bool is_utf8(std::string_view text) noexcept;

/// `text` as a JSON string; it must be UTF-8.
std::string json_string(std::string_view text);

}  // namespace regard::safetensors

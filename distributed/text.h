#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "regard/status.h"

namespace regard::distributed {

inline std::string text_of(std::string text) { return text; }
inline std::string text_of(const char* text) { return text; }
template <class Number>
requires std::is_arithmetic_v<Number> std::string text_of(Number number) {
  return std::to_string(number);
}

/// "[where] parts..."
template <class... Parts>
Status failure(StatusCode code, const char* where, const Parts&... parts) {
  std::string text = std::string("[") + where + "] ";
  ((text += text_of(parts)), ...);
  return Status(code, std::move(text));
}
template <class... Parts>
Status invalid(const char* where, const Parts&... parts) {
  return failure(StatusCode::kInvalidArgument, where, parts...);
}

}  // namespace regard::distributed

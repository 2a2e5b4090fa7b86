#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"
#include "regard/status.h"

// How messages are put together: "[where] what (value) and what was expected".

namespace regard {

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, double x) {
  out += std::isnan(x) ? std::string("nan") : number_text(x);
}
template <std::integral T>
void append(std::string& out, T n) {
  out += std::to_string(n);
}

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

template <class... Parts>
[[gnu::cold, gnu::noinline]] Status failure(StatusCode code, const char* where,
                                            const Parts&... parts) {
  return Status(code, concat("[", where, "] ", parts...));
}

template <class... Parts>
[[gnu::cold, gnu::noinline]] Status invalid(const char* where, const Parts&... parts) {
  return failure(StatusCode::kInvalidArgument, where, parts...);
}

/// `text` fit for a message: at most 60 bytes, nothing that a terminal would obey.
inline std::string quoted(std::string_view text) {
  constexpr std::size_t kMaxBytes = 60;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + (text.size() > kMaxBytes ? "...'" : "'");
}

}  // namespace regard

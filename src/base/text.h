#pragma once

#include <charconv>
#include <cstdint>
#include <string>

// Numbers as text, the same in every locale.

namespace regard {

/// The shortest text that reads back as x.
inline std::string number_text(double x) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), x);
  return std::string(text, result.ptr);
}

/// An error bound: "4.0e-03", or number_text where that does not read back as x.
inline std::string error_text(double x) {
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof(text), x, std::chars_format::scientific, 1).ptr;
  double back = 0.0;
  std::from_chars(text, end, back);
  return back == x ? std::string(text, end) : number_text(x);
}

/// Three digits or more: "4.27", "42.7", "427".
inline std::string figure_text(double x) {
  char text[400];  // the largest number has 309 digits
  const int decimals = x < 9.995 ? 2 : x < 99.95 ? 1 : 0;
  const auto result =
      std::to_chars(text, text + sizeof(text), x, std::chars_format::fixed, decimals);
  return std::string(text, result.ptr);
}

/// "4.27 us", "42.7 ms", "427 s"
inline std::string seconds_text(double seconds) {
  if (seconds < 999.5e-6) return figure_text(seconds * 1e6) + " us";
  if (seconds < 0.9995) return figure_text(seconds * 1e3) + " ms";
  return figure_text(seconds) + " s";
}

/// "512 B", "207.1 KiB", "5.8 MiB"
inline std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double size = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* larger : {" KiB", " MiB", " GiB"}) {
    if (size < 1024.0) break;
    size /= 1024.0;
    unit = larger;
  }
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), size, std::chars_format::fixed, 1);
  return std::string(text, result.ptr) + unit;
}

}  // namespace regard

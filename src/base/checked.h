#pragma once

#include <cstdint>
#include <limits>

// Arithmetic on sizes that cannot wrap.

namespace regard {

inline constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

/// False on overflow, with *out unspecified.
inline bool checked_mul(std::int64_t a, std::int64_t b, std::int64_t* out) noexcept {
  return !__builtin_mul_overflow(a, b, out);
}
inline bool checked_add(std::int64_t a, std::int64_t b, std::int64_t* out) noexcept {
  return !__builtin_add_overflow(a, b, out);
}

/// For sizes (a, b >= 0): INT64_MAX instead of overflow.
inline std::int64_t saturating_mul(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t out = 0;
  return checked_mul(a, b, &out) ? out : kInt64Max;
}
inline std::int64_t saturating_add(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t out = 0;
  return checked_add(a, b, &out) ? out : kInt64Max;
}

/// ceil(a / b) for a >= 0, b > 0, without overflow.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}
/// a rounded up to a multiple of b, saturating.
inline std::int64_t round_up(std::int64_t a, std::int64_t b) noexcept {
  return saturating_mul(ceil_div(a, b), b);
}

}  // namespace regard

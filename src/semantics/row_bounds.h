#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

namespace regard::semantics {

inline constexpr std::int64_t kMaxPosition = INT64_MAX;
inline constexpr std::int64_t kMinPosition = INT64_MIN;

/// a + b, held at the ends of the range.
REGARD_KERNEL_FN constexpr std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  if (b > 0 && a > kMaxPosition - b) return kMaxPosition;
  if (b < 0 && a < kMinPosition - b) return kMinPosition;
  return a + b;
}

REGARD_KERNEL_FN constexpr std::int64_t clamp(std::int64_t x, std::int64_t lo, std::int64_t hi) {
  return x < lo ? lo : (x > hi ? hi : x);
}

/// Keys [lo, hi); empty when lo >= hi.
struct KeyRange {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
};

REGARD_KERNEL_FN constexpr bool is_empty(const KeyRange& keys) { return keys.lo >= keys.hi; }

/// What one sequence's rows see by arithmetic alone: query i stands at key i + shift and sees the
/// keys of its length within the window around that (inclusive distances, -1 = unlimited).
struct Band {
  std::int64_t shift = 0;  // any value: callers give offsets of their own
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;  // 0 = causal
  std::int64_t len_kv = 0;
};

/// The shift of Diagonal::kBottomRight: the last query is at the last key.
REGARD_KERNEL_FN constexpr std::int64_t bottom_right_shift(std::int64_t len_q,
                                                           std::int64_t len_kv) {
  return len_kv - len_q;
}

/// Where query i stands, in keys.
REGARD_KERNEL_FN constexpr std::int64_t diagonal_position(std::int64_t i, std::int64_t shift) {
  return saturating_add(i, shift);
}

/// The keys that query i >= 0 may see. Both ends grow with i. The sums are ordered so that
/// saturation never moves an end that lies within [0, len_kv]: i - window_left cannot overflow, and
/// i + 1 + shift passes the top only where window_right cannot bring it back.
REGARD_KERNEL_FN constexpr KeyRange visible_keys(const Band& band, std::int64_t i) {
  std::int64_t lo = 0;
  std::int64_t hi = band.len_kv;
  if (band.window_left >= 0) {
    lo = clamp(saturating_add(i - band.window_left, band.shift), 0, band.len_kv);
  }
  if (band.window_right >= 0) {
    const std::int64_t end = saturating_add(saturating_add(i + 1, band.shift), band.window_right);
    hi = clamp(end, 0, band.len_kv);
  }
  return {lo, hi};
}

/// The keys that any of the queries [i_begin, i_end) may see, as one range.
REGARD_KERNEL_FN constexpr KeyRange visible_keys(const Band& band, std::int64_t i_begin,
                                                 std::int64_t i_end) {
  if (i_begin >= i_end) return {0, 0};
  return {visible_keys(band, i_begin).lo, visible_keys(band, i_end - 1).hi};
}

}  // namespace regard::semantics

#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace regard::cli {

/// Seconds of a clock that only goes forward.
inline double now_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// The middle value, or the mean of the two in the middle; 0 where there is none.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  if (n == 0) return 0.0;
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

}  // namespace regard::cli

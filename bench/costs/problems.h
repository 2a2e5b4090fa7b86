#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "regard/params.h"

// Random problems of a group.

namespace regard::bench {

/// Draws of a generator, the same with every standard library.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::int64_t whole(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double share() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  std::int64_t logarithmic(double low, double high) {
    return static_cast<std::int64_t>(std::lround(low * std::pow(high / low, share())));
  }
  template <class T, std::size_t kCount>
  const T& one_of(const T (&values)[kCount]) {
    return values[engine_() % kCount];
  }

 private:
  std::mt19937_64 engine_;
};

/// The first kBackendGroups compare backends, the others ways to compute padded sequences and
/// formats of a cache.
inline constexpr const char* kGroups[] = {"prefill",  "decode", "short",  "masked",
                                          "backward", "cache",  "padded", "formats"};
inline constexpr std::size_t kBackendGroups = 6;

/// A case of one of the first kBackendGroups groups, or of "formats" without a format. Small enough
/// that MATH takes some 30 ms.
std::string draw_case(const std::string& group, Draw* draw);

}  // namespace regard::bench

#pragma once

#include <cstddef>
#include <cstdint>

namespace regard::conformance {

/// The last step of splitmix64: a bijection that mixes every bit.
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Random numbers by position: value n of a stream is a function of (seed, stream, n) alone. No
/// std:: distribution: those differ between libraries, and a repro line must not.
class Rng {
 public:
  constexpr Rng(std::uint64_t seed, std::uint64_t stream) noexcept
      : state_(mix(seed ^ mix(stream))) {}

  constexpr std::uint64_t bits_at(std::uint64_t n) const noexcept { return mix(state_ + mix(n)); }
  /// Uniform in [0, 1).
  constexpr double uniform_at(std::uint64_t n) const noexcept {
    return static_cast<double>(bits_at(n) >> 11) * 0x1p-53;
  }
  /// Mean 0, deviation 1, within 3.5: the sum of four uniform numbers.
  constexpr double normal_at(std::uint64_t n) const noexcept {
    const std::uint64_t bits = bits_at(n);
    const std::uint64_t sum =
        (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    return (static_cast<double>(sum) - 131070.0) * (1.7320508075688772 / 65536.0);
  }

  // The same, each call at the next position.
  constexpr std::uint64_t bits() noexcept { return bits_at(next_++); }
  constexpr double uniform() noexcept { return uniform_at(next_++); }
  constexpr bool chance(double p) noexcept { return uniform() < p; }
  /// Uniform in [low, high].
  constexpr std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(span == 0 ? bits() : bits() % span);
  }
  template <class T, std::size_t N>
  constexpr const T& pick(const T (&choices)[N]) noexcept {
    return choices[bits() % N];
  }

 private:
  std::uint64_t state_;
  std::uint64_t next_ = 0;
};

}  // namespace regard::conformance

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace regard {

/// Mixes words into a 64-bit hash; the multiply-xorshift step of splitmix64.
class Hasher {
 public:
  void add(std::uint64_t word) noexcept {
    state_ ^= word;
    state_ *= 0xbf58476d1ce4e5b9ull;
    state_ ^= state_ >> 29;
  }
  void add_bytes(std::string_view text) noexcept {
    add(text.size());
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  std::size_t value() const noexcept { return static_cast<std::size_t>(state_); }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15ull;
};

}  // namespace regard

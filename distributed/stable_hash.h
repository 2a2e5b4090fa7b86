#pragma once

#include <cstdint>
#include <string_view>

namespace regard {

/// FNV-1a: the same in every program and build, for what is stored or sent.
constexpr std::uint64_t stable_hash(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace regard

#pragma once

#include <array>
#include <cstdint>

namespace regard::oracle {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Philox4x32 of Salmon et al. (SC 2011) with `rounds` rounds; regard's dropout uses 7.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key, int rounds);

/// Where a probability lies, as dropout counts it.
struct DropoutPlace {
  std::uint64_t sequence;   // b
  std::uint64_t num_heads;  // Hq
  std::uint64_t head;       // h
  std::uint32_t row;        // the row's position on the diagonal, mod 2^32
  std::uint64_t key;        // j
};

/// The 16-bit draw that decides over one probability: kept iff draw < threshold.
std::uint32_t dropout_draw(std::uint64_t seed, std::uint64_t offset, const DropoutPlace& place);

/// floor((1 - p) * 65536 + 0.5).
std::uint32_t dropout_threshold(double dropout_p);

}  // namespace regard::oracle

#include "oracle/philox.h"

#include <cmath>

namespace regard::oracle {

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

std::uint32_t dropout_draw(std::uint64_t seed, std::uint64_t offset, const DropoutPlace& place) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const PhiloxKey key{low(seed), high(seed) ^ high(offset)};
  const PhiloxCounter counter{low(place.key >> 3), place.row,
                              low(place.sequence * place.num_heads + place.head), low(offset)};
  const PhiloxCounter words = philox4x32(counter, key, 7);
  const std::uint32_t word = words[(place.key % 8) / 2];
  return place.key % 2 == 0 ? word & 0xffff : word >> 16;
}

std::uint32_t dropout_threshold(double dropout_p) {
  return static_cast<std::uint32_t>(std::floor((1.0 - dropout_p) * 65536.0 + 0.5));
}

}  // namespace regard::oracle

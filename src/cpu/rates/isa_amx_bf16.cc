#include <cstdint>

#include "cpu/rates/loops.h"
#include "cpu/simd/amx_tiles.h"

namespace regard::cpu {
namespace {

/// Four sums, which hide the latency of a product, of zeros.
double run_products(std::int64_t rounds) {
  const amx::Configuration configuration;
  amx::clear<0>();
  amx::clear<1>();
  amx::clear<2>();
  amx::clear<3>();
  amx::clear<6>();
  amx::clear<7>();
  for (std::int64_t round = 0; round < rounds; ++round) {
    amx::add_product<0, 6, 7>();
    amx::add_product<1, 6, 7>();
    amx::add_product<2, 6, 7>();
    amx::add_product<3, 6, 7>();
  }
  alignas(64) float sums[amx::kRows][amx::kRows];
  amx::store<0>(sums, amx::kRowBytes);
  return static_cast<double>(sums[0][0]);
}

}  // namespace

const ArithmeticLoop kAmxBf16Products{run_products, 4 * 2 * amx::kRows* amx::kRows* amx::kDepth};

}  // namespace regard::cpu

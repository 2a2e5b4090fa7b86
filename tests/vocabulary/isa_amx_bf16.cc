#include "cpu/simd/amx_tiles.h"
#include "tests/vocabulary/amx_product.h"

namespace regard {
namespace {

void multiply(const AmxProduct& product) {
  amx::clear<0>();
  amx::load<1>(product.a, amx::kRowBytes);
  amx::load<2>(product.b, amx::kRowBytes);
  amx::add_product<0, 1, 2>();
  amx::store<0>(product.c, amx::kRowBytes);
}

}  // namespace

void multiply_by_amx(const AmxProduct& product) {
  const amx::Configuration configuration;
  multiply(product);
}

void multiply_by_amx_around(const AmxProduct& outer, const AmxProduct& inner) {
  const amx::Configuration configuration;
  multiply_by_amx(inner);
  multiply(outer);
}

}  // namespace regard

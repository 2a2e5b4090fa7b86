#include "cpu/simd/simd_avx512.h"
#include "vocabulary.inl"

namespace regard::test {
namespace {

using V = simd_avx512::Simd<float>;

bool f16_of_f8(bool is_e5m2, const std::uint8_t* codes, std::uint16_t* to) {
  static_assert(V::kF8Codes == 32);
  const char* const bytes = reinterpret_cast<const char*>(codes);
  V::Int seen{};
  if (is_e5m2) {
    V::f16_of_f8e5m2(bytes, to);
  } else {
    V::f16_of_f8e4m3(bytes, to, &seen);
  }
  return V::has_f8e4m3_nan(seen);
}

constexpr Vocabulary vocabulary_with_f16() {
  Vocabulary vocabulary = vocabulary_of<V>();
  vocabulary.f16_of_f8 = f16_of_f8;
  return vocabulary;
}

}  // namespace

const Vocabulary kAvx512Vocabulary = vocabulary_with_f16();

}  // namespace regard::test

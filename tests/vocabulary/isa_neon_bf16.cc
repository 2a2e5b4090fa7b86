#include "cpu/bf16_tiles.inl"
#include "cpu/simd_neon_bf16.h"
#include "vocabulary.inl"

namespace regard::test {
namespace {

using V = simd_neon_bf16::Simd<float>;

void to_pairs(const float* low, const float* high, std::uint16_t* to) {
  const V::Int pairs = V::to_pairs(V::load(low), V::load(high));
  __builtin_memcpy(to, &pairs, sizeof(pairs));
}

void dot(const std::uint16_t* a, const std::uint16_t* b, bool visible, float* sum) {
  using Term = cpu::PairTerm<V>;
  const auto scalar = Term::broadcast(*reinterpret_cast<const cpu::Pair*>(a));
  const auto column = Term::load(reinterpret_cast<const cpu::Pair*>(b));
  V::store(sum, visible ? Term::add_visible(V::load(sum), scalar, column)
                        : Term::add(V::load(sum), scalar, column));
}

constexpr Vocabulary with_pairs() {
  Vocabulary vocabulary = vocabulary_of<V>();
  vocabulary.to_pairs = to_pairs;
  vocabulary.dot = dot;
  return vocabulary;
}

}  // namespace

const Vocabulary kNeonBf16Vocabulary = with_pairs();

}  // namespace regard::test

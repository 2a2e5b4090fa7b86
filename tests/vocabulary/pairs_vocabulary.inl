#include "cpu/forward/bf16_tiles.inl"
#include "vocabulary.inl"

// The vocabulary of a unit that multiplies pairs of bf16.

namespace regard::test {
namespace {

template <class V>
void to_pairs(const float* low, const float* high, std::uint16_t* to) {
  const typename V::Int pairs = V::to_pairs(V::load(low), V::load(high));
  __builtin_memcpy(to, &pairs, sizeof(pairs));
}

template <class V>
void dot(const std::uint16_t* a, const std::uint16_t* b, bool visible, float* sum) {
  using Term = cpu::PairTerm<V>;
  const auto scalar = Term::broadcast(*reinterpret_cast<const cpu::Pair*>(a));
  const auto column = Term::load(reinterpret_cast<const cpu::Pair*>(b));
  V::store(sum, visible ? Term::add_visible(V::load(sum), scalar, column)
                        : Term::add(V::load(sum), scalar, column));
}

template <class V>
constexpr Vocabulary vocabulary_with_pairs() {
  Vocabulary vocabulary = vocabulary_of<V>();
  vocabulary.to_pairs = to_pairs<V>;
  vocabulary.dot = dot<V>;
  return vocabulary;
}

}  // namespace
}  // namespace regard::test

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

template <class V>
void bf16_of_f8(bool is_e5m2, const std::uint8_t* codes, std::uint16_t* to) {
  V::bf16_of_f8(V::f8_table(is_e5m2), reinterpret_cast<const char*>(codes), to);
}

template <class Int>
Int ints_at(const void* p) {
  Int x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

template <class V>
void add_bytes(const std::uint8_t* codes, const std::int8_t* numbers, std::int32_t* sum) {
  using Int = typename V::Int;
  const Int total = V::add_bytes(ints_at<Int>(sum), ints_at<Int>(codes), ints_at<Int>(numbers));
  __builtin_memcpy(sum, &total, sizeof(total));
}

template <class V>
void join_quads(int quad, const std::uint8_t* from, std::uint8_t* to) {
  using Int = typename V::Int;
  const Int a = ints_at<Int>(from), b = ints_at<Int>(from + 64), c = ints_at<Int>(from + 128),
            d = ints_at<Int>(from + 192);
  const Int joined = quad == 0   ? V::template join_quads<0>(a, b, c, d)
                     : quad == 1 ? V::template join_quads<1>(a, b, c, d)
                     : quad == 2 ? V::template join_quads<2>(a, b, c, d)
                                 : V::template join_quads<3>(a, b, c, d);
  __builtin_memcpy(to, &joined, sizeof(joined));
}

template <class V>
void join_bytes(const std::int32_t* words, std::int8_t* high, std::int8_t* low) {
  typename V::Int from[4], bytes[2];
  __builtin_memcpy(from, words, sizeof(from));
  V::join_bytes(from, bytes, bytes + 1);
  __builtin_memcpy(high, bytes, sizeof(bytes[0]));
  __builtin_memcpy(low, bytes + 1, sizeof(bytes[1]));
}

template <class V>
constexpr Vocabulary vocabulary_with_bytes() {
  Vocabulary vocabulary = vocabulary_with_pairs<V>();
  vocabulary.bf16_of_f8 = bf16_of_f8<V>;
  vocabulary.add_bytes = add_bytes<V>;
  vocabulary.join_quads = join_quads<V>;
  vocabulary.join_bytes = join_bytes<V>;
  return vocabulary;
}

}  // namespace
}  // namespace regard::test

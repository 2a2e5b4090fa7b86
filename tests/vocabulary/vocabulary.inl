// The functions of a Vocabulary over V. Included by isa_<isa>.cc.

#include "cpu/simd/product.h"
#include "cpu/simd/vector_math.h"
#include "vocabulary.h"

namespace regard::test {
namespace {

template <class V>
void exp2_of(const float* t, float* to) {
  typename V::Vec x[cpu::kExp2Vectors] = {};  // what stands beside it does not matter
  x[0] = V::set(-__builtin_inff());
  x[1] = V::set(__builtin_nanf(""));
  x[cpu::kExp2Vectors - 1] = V::load(t);
  cpu::exp2_nonpositive<V, cpu::kExp2Vectors>(x, V::set(1));
  V::store(to, x[cpu::kExp2Vectors - 1]);
}
template <class V>
void tanh_of(const float* x, float* to) {
  V::store(to, cpu::tanh_vector<V>(V::load(x)));
}
template <class V>
void scaled_tanh_of(const float* x, float* to) {
  typename V::Vec vectors[cpu::kExp2Vectors];  // all of them: blocks of several have steps in order
  for (auto& vector : vectors) vector = V::load(x);
  cpu::scaled_tanh<V, cpu::kExp2Vectors>(vectors, cpu::tanh_scale<V>(-0.125, 30.0, 30.0));
  V::store(to, vectors[cpu::kExp2Vectors - 1]);
}
template <class V>
void exp_of(const float* x, float* to) {
  V::store(to, cpu::exp_vector<V>(V::load(x)));
}
template <class V>
void log_of(const float* x, float* to) {
  V::store(to, cpu::log_vector<V>(V::load(x)));
}
template <class V>
void sqrt_of(const float* x, float* to) {
  V::store(to, cpu::sqrt_vector<V>(V::load(x)));
}
template <class V>
void sigmoid_of(const float* x, float* to) {
  V::store(to, cpu::sigmoid_vector<V>(V::load(x)));
}
template <class V>
void max_of(const float* a, const float* b, float* to) {
  V::store(to, V::max(V::load(a), V::load(b)));
}
template <class V>
void load_bf16(const std::uint16_t* from, float* to) {
  V::store(to, V::load_bf16(from));
}
template <class V>
void load_f16(const std::uint16_t* from, float* to) {
  V::store(to, V::load_f16(from));
}
template <class V>
void load_f8e4m3(const std::uint8_t* from, float* to) {
  V::store(to, V::load_f8e4m3(from));
}
template <class V>
void load_f8e5m2(const std::uint8_t* from, float* to) {
  V::store(to, V::load_f8e5m2(from));
}
template <class V>
void load_u4(const std::uint8_t* from, float* to) {
  V::store(to, V::load_u4(reinterpret_cast<const char*>(from)));
}
template <class V>
void store_bf16(const float* from, std::uint16_t* to) {
  V::store_bf16(to, V::load(from));
}
template <class V>
void store_f16(const float* from, std::uint16_t* to) {
  V::store_f16(to, V::load(from));
}
template <class V>
void transpose(float* square) {
  typename V::Vec rows[V::kLanes];
  for (int i = 0; i < V::kLanes; ++i) rows[i] = V::load(square + i * V::kLanes);
  V::transpose(rows);
  for (int i = 0; i < V::kLanes; ++i) V::store(square + i * V::kLanes, rows[i]);
}
template <class V>
void sum_rows(const float* square, float* to) {
  typename V::Vec rows[V::kLanes];
  for (int i = 0; i < V::kLanes; ++i) rows[i] = V::load(square + i * V::kLanes);
  V::store(to, V::sum_rows(rows));
}
template <class V>
void scores(const ProductCall& x, float* max) {
  cpu::with_vectors<V::kVectors>(
      x.vectors, [&](auto vectors) __attribute__((always_inline)) {
        cpu::scores_of<V, cpu::ScalarTerm<V>, decltype(vectors)::value>({x.a, x.k, 1}, x.b, x.c,
                                                                        x.m, x.k, max);
      });
}
template <class V>
void add_product(const ProductCall& x, const float* rescale, bool select) {
  cpu::with_vectors<V::kVectors>(
      x.vectors, [&](auto vectors) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(vectors)::value;
        using Term = cpu::ScalarTerm<V>;
        if (select) {
          cpu::add_product<V, Term, kVectors, true>({x.a, x.k, 1}, x.b, x.c, x.m, x.k, rescale);
        } else {
          cpu::add_product<V, Term, kVectors, false>({x.a, x.k, 1}, x.b, x.c, x.m, x.k, rescale);
        }
      });
}

template <class V>
void bf16_pairs(const float* low, const float* high, std::uint16_t* to) {
  const auto pairs = V::bf16_pairs(V::load(low), V::load(high));
  __builtin_memcpy(to, &pairs, sizeof(pairs));
}

template <class V>
constexpr Vocabulary vocabulary_of() {
  return {V::kLanes,     V::kVectors,    exp2_of<V>,     tanh_of<V>,     scaled_tanh_of<V>,
          exp_of<V>,     log_of<V>,      sqrt_of<V>,     sigmoid_of<V>,  max_of<V>,
          load_bf16<V>,  load_f16<V>,    load_f8e4m3<V>, load_f8e5m2<V>, load_u4<V>,
          store_bf16<V>, bf16_pairs<V>,  store_f16<V>,   transpose<V>,   sum_rows<V>,
          scores<V>,     add_product<V>, nullptr,        nullptr};
}

}  // namespace
}  // namespace regard::test

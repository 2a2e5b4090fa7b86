#include <immintrin.h>

#include "bench/peak/chains.inl"

namespace regard::peak {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr int kChains = 16;
  const Vector factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(1e-4f);

  Vector operator()(Vector chain) const { return _mm512_fmadd_ps(chain, factor, term); }
  void end_round() {}
};

}  // namespace

Loop avx512_loop() { return loop_of<Avx512>(16); }

}  // namespace regard::peak

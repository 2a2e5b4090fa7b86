#include <immintrin.h>

#include "bench/peak/chains.inl"

namespace regard::peak {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int kChains = 12;  // latency (4 or 5 cycles) times two a cycle, in 16 registers
  const Vector factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-4f);

  Vector operator()(Vector chain) const { return _mm256_fmadd_ps(chain, factor, term); }
  void end_round() {}
};

}  // namespace

Loop avx2_loop() { return loop_of<Avx2>(8); }

}  // namespace regard::peak

#include <immintrin.h>

#include "bench/peak/chains.inl"

namespace regard::peak {
namespace {

struct Avx512Bf16 {
  using Vector = __m512;
  static constexpr int kChains = 16;
  __m512i left = _mm512_set1_epi16(0x3c00), right = _mm512_set1_epi16(0x3c01);

  Vector operator()(Vector chain) const {
    return _mm512_dpbf16_ps(chain, (__m512bh)left, (__m512bh)right);
  }
  // The products are not the same each round, or the compiler would multiply once.
  void end_round() { asm volatile("" : "+v"(left), "+v"(right)); }
};

}  // namespace

Loop avx512_bf16_loop() { return loop_of<Avx512Bf16>(32); }

}  // namespace regard::peak

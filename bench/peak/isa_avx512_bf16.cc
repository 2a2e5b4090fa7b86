#include <immintrin.h>

#include "bench/peak/loops.h"

namespace regard::peak {
namespace {

constexpr int kChains = 16;

float run(std::int64_t rounds) {
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i) * 1e-3f);
  __m512i left = _mm512_set1_epi16(0x3c00), right = _mm512_set1_epi16(0x3c01);
  for (std::int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 16
    for (__m512& chain : sum) chain = _mm512_dpbf16_ps(chain, (__m512bh)left, (__m512bh)right);
    asm volatile("" : "+v"(left), "+v"(right));  // the products are not the same each round
  }
  __m512 total = sum[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sum[i]);
  return _mm512_cvtss_f32(total);
}

}  // namespace

Loop avx512_bf16_loop() { return {run, kChains * 32 * 2}; }

}  // namespace regard::peak

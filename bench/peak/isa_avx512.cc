#include <immintrin.h>

#include "bench/peak/loops.h"

namespace regard::peak {
namespace {

constexpr int kChains = 16;

float run(std::int64_t rounds) {
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i) * 1e-3f);
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(1e-4f);
  for (std::int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 16
    for (__m512& chain : sum) chain = _mm512_fmadd_ps(chain, factor, term);
  }
  __m512 total = sum[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_ps(total, sum[i]);
  return _mm512_cvtss_f32(total);
}

}  // namespace

Loop avx512_loop() { return {run, kChains * 16 * 2}; }

}  // namespace regard::peak

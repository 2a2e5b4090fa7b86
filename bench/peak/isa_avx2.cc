#include <immintrin.h>

#include "bench/peak/loops.h"

namespace regard::peak {
namespace {

constexpr int kChains = 12;  // latency (4 or 5 cycles) times two a cycle, in 16 registers

float run(std::int64_t rounds) {
  __m256 sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i) * 1e-3f);
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-4f);
  for (std::int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 16
    for (__m256& chain : sum) chain = _mm256_fmadd_ps(chain, factor, term);
  }
  __m256 total = sum[0];
  for (int i = 1; i < kChains; ++i) total = _mm256_add_ps(total, sum[i]);
  return _mm256_cvtss_f32(total);
}

}  // namespace

Loop avx2_loop() { return {run, kChains * 8 * 2}; }

}  // namespace regard::peak

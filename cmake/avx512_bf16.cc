#include "cpu/forward/bf16_pairs.h"
#include "cpu/simd/simd_avx512_bf16.h"

// Compiled when the build is configured: Clang 16 crashes over this product at -O2.

namespace regard::cpu {

using V = simd_avx512_bf16::Simd<float>;

void probe(ProductInput<Pair> keys, const Pair* queries, float* scores, std::int64_t m,
           std::int64_t k, float* max) {
  scores_of<V, PairTerm<V>, V::kVectors>(keys, queries, scores, m, k, max);
}

}  // namespace regard::cpu

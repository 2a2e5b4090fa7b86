#include "cpu/simd/simd_neon_bf16.h"
#include "pairs_vocabulary.inl"

namespace regard::test {

const Vocabulary kNeonBf16Vocabulary = vocabulary_with_pairs<simd_neon_bf16::Simd<float>>();

}  // namespace regard::test

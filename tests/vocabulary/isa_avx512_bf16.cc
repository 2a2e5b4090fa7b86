#include "cpu/simd/simd_avx512_bf16.h"
#include "pairs_vocabulary.inl"

namespace regard::test {

const Vocabulary kAvx512Bf16Vocabulary = vocabulary_with_bytes<simd_avx512_bf16::Simd<float>>();

}  // namespace regard::test

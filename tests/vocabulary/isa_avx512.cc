#include "cpu/simd/simd_avx512.h"
#include "vocabulary.inl"

namespace regard::test {

const Vocabulary kAvx512Vocabulary = vocabulary_of<simd_avx512::Simd<float>>();

}  // namespace regard::test

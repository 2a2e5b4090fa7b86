#include "cpu/simd/simd_avx2.h"
#include "vocabulary.inl"

namespace regard::test {

const Vocabulary kAvx2Vocabulary = vocabulary_of<simd_avx2::Simd<float>>();

}  // namespace regard::test

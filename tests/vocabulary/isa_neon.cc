#include "cpu/simd/simd_neon.h"
#include "vocabulary.inl"

namespace regard::test {

const Vocabulary kNeonVocabulary = vocabulary_of<simd_neon::Simd<float>>();

}  // namespace regard::test

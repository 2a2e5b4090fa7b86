#include "cpu/simd/simd_scalar.h"
#include "vocabulary.inl"

namespace regard::test {

const Vocabulary kScalarVocabulary = vocabulary_of<simd_scalar::Simd<float>>();

}  // namespace regard::test

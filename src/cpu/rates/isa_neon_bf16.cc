#include "cpu/rates/loops.inl"
#include "cpu/simd/simd_neon_bf16.h"

namespace regard::cpu {

const ArithmeticLoop kNeonBf16Pairs = kPairs<simd_neon_bf16::Simd<float>>;

}  // namespace regard::cpu

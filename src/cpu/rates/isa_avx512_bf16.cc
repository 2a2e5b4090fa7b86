#include "cpu/rates/loops.inl"
#include "cpu/simd/simd_avx512_bf16.h"

namespace regard::cpu {

const ArithmeticLoop kAvx512Bf16Pairs = kPairs<simd_avx512_bf16::Simd<float>>;

}  // namespace regard::cpu

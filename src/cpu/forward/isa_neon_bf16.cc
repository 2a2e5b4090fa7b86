#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/bf16_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_neon_bf16.h"

namespace regard::cpu {

const TiledKernel kNeonBf16Forward = kTiledKernel<Bf16Tiles<simd_neon_bf16::Simd<float>>>;

}  // namespace regard::cpu

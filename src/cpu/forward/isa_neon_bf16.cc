#include "cpu/bf16_tiles.inl"
#include "cpu/few_rows.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd_neon_bf16.h"

namespace regard::cpu {

const TiledKernel kNeonBf16Forward = kTiledKernel<Bf16Tiles<simd_neon_bf16::Simd<float>>>;

}  // namespace regard::cpu

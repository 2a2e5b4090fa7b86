#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/bf16_tiles.inl"
#include "cpu/forward/float_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_avx512_bf16.h"

namespace regard::cpu {

const TiledKernel kAvx512Bf16Forward = kTiledKernel<Bf16Tiles<simd_avx512_bf16::Simd<float>>>;
const TiledKernel kAvx512Bf16FloatForward = kTiledKernel<FloatTiles<simd_avx512_bf16::Simd<float>>>;

}  // namespace regard::cpu

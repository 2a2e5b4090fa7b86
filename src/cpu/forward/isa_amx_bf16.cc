#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/amx_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_avx512_bf16.h"

namespace regard::cpu {

const TiledKernel kAmxBf16Forward = kTiledKernel<AmxTiles<simd_avx512_bf16::Simd<float>>>;

}  // namespace regard::cpu

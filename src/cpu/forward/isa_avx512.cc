#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/float_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_avx512.h"

namespace regard::cpu {

const TiledKernel kAvx512Forward = kTiledKernel<FloatTiles<simd_avx512::Simd<float>>>;

}  // namespace regard::cpu

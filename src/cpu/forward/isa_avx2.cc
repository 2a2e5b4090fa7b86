#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/float_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_avx2.h"

namespace regard::cpu {

const TiledKernel kAvx2Forward = kTiledKernel<FloatTiles<simd_avx2::Simd<float>>>;

}  // namespace regard::cpu

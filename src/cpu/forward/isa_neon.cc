#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/float_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_neon.h"

namespace regard::cpu {

const TiledKernel kNeonForward = kTiledKernel<FloatTiles<simd_neon::Simd<float>>>;

}  // namespace regard::cpu

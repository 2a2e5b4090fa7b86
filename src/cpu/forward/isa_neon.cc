#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd_neon.h"

namespace regard::cpu {

const TiledKernel kNeonForward = kTiledKernel<FloatTiles<simd_neon::Simd<float>>>;

}  // namespace regard::cpu

#include "cpu/decode/decode_rows.inl"
#include "cpu/forward/float_tiles.inl"
#include "cpu/forward/kernels.h"
#include "cpu/simd/simd_scalar.h"

namespace regard::cpu {

const TiledKernel kScalarForward = kTiledKernel<FloatTiles<simd_scalar::Simd<float>>>;

}  // namespace regard::cpu

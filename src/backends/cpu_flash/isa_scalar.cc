#include "backends/cpu_flash/kernel.h"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_scalar.h"

namespace regard::flash {
namespace {
using V = simd_scalar::Simd<float>;
}

const cpu::TiledKernel kScalarKernel = cpu::kTiledKernel<cpu::FloatTiles<V, true>>;

}  // namespace regard::flash

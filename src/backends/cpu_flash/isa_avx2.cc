#include "backends/cpu_flash/kernel.h"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx2.h"

namespace regard::flash {
namespace {
using V = simd_avx2::Simd<float>;
}

const cpu::TiledKernel kAvx2Kernel = cpu::kTiledKernel<cpu::FloatTiles<V, true>>;

}  // namespace regard::flash

#include "backends/cpu_flash/kernel.h"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx512.h"

namespace regard::flash {
namespace {
using V = simd_avx512::Simd<float>;
}

const cpu::TiledKernel kAvx512Kernel = cpu::kTiledKernel<cpu::FloatTiles<V, true>>;

}  // namespace regard::flash

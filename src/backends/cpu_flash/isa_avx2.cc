#include "backends/cpu_flash/kernel.h"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx2.h"
#include "cpu/tiled_forward.inl"

namespace regard::flash {
namespace {
using V = simd_avx2::Simd<float>;
}

const cpu::TiledKernel kAvx2Kernel = {cpu::tiled_forward<cpu::FloatTiles<V, true>>, V::kWidth,
                                      sizeof(cpu::Strip<V>)};

}  // namespace regard::flash

#include "backends/cpu_efficient/kernel.h"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx2.h"

namespace regard::efficient {
namespace {
using V = simd_avx2::Simd<float>;
}

const cpu::TiledKernel kAvx2Kernel = cpu::kTiledKernel<cpu::FloatTiles<V, false>>;

}  // namespace regard::efficient

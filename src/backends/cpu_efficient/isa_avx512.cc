#include "backends/cpu_efficient/kernel.h"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx512.h"

namespace regard::efficient {
namespace {
using V = simd_avx512::Simd<float>;
}

const cpu::TiledKernel kAvx512Kernel = cpu::kTiledKernel<cpu::FloatTiles<V, false>>;

}  // namespace regard::efficient

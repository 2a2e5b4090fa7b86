#include "backends/cpu_efficient/kernel.h"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx512.h"
#include "cpu/tiled_forward.inl"

namespace regard::efficient {
namespace {
using V = simd_avx512::Simd<float>;
}

const cpu::TiledKernel kAvx512Kernel = {cpu::tiled_forward<cpu::FloatTiles<V, false>>, V::kWidth,
                                        sizeof(cpu::Strip<V>)};

}  // namespace regard::efficient

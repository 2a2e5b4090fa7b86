#include "backends/cpu_flash/kernel.h"
#include "cpu/float_tiles.inl"
#include "cpu/simd_scalar.h"
#include "cpu/tiled_forward.inl"

namespace regard::flash {
namespace {
using V = simd_scalar::Simd<float>;
}

const cpu::TiledKernel kScalarKernel = {cpu::tiled_forward<cpu::FloatTiles<V, true>>, V::kWidth,
                                        sizeof(cpu::Strip<V>)};

}  // namespace regard::flash

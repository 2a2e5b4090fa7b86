#include "backends/cpu_efficient/kernel.h"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_scalar.h"

namespace regard::efficient {
namespace {
using V = simd_scalar::Simd<float>;
}

const cpu::TiledKernel kScalarKernel = cpu::kTiledKernel<cpu::FloatTiles<V, false>>;

}  // namespace regard::efficient

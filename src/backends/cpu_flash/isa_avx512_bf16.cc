#include "backends/cpu_flash/kernel.h"
#include "cpu/bf16_tiles.inl"
#include "cpu/few_rows.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx512_bf16.h"

namespace regard::flash {
namespace {
using V = simd_avx512_bf16::Simd<float>;
}

const cpu::TiledKernel kAvx512Bf16Kernel = cpu::kTiledKernel<cpu::Bf16Tiles<V>>;
const cpu::TiledKernel kAvx512Bf16FloatKernel = cpu::kTiledKernel<cpu::FloatTiles<V, true>>;

}  // namespace regard::flash

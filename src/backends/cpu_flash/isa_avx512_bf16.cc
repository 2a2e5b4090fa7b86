#include "backends/cpu_flash/kernel.h"
#include "cpu/bf16_tiles.inl"
#include "cpu/float_tiles.inl"
#include "cpu/simd_avx512_bf16.h"
#include "cpu/tiled_forward.inl"

namespace regard::flash {
namespace {
using V = simd_avx512_bf16::Simd<float>;
}

const cpu::TiledKernel kAvx512Bf16Kernel = {cpu::tiled_forward<cpu::Bf16Tiles<V>>, V::kWidth,
                                            sizeof(cpu::Strip<V>)};
const cpu::TiledKernel kAvx512Bf16FloatKernel = {cpu::tiled_forward<cpu::FloatTiles<V, true>>,
                                                 V::kWidth, sizeof(cpu::Strip<V>)};

}  // namespace regard::flash

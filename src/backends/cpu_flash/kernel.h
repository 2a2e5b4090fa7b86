#pragma once

#include "cpu/tiled.h"

namespace regard::flash {

extern const cpu::TiledKernel kScalarKernel;
// x86-64 builds only:
extern const cpu::TiledKernel kAvx2Kernel;
extern const cpu::TiledKernel kAvx512Kernel;
extern const cpu::TiledKernel kAvx512Bf16Kernel;       // bf16 inputs, products of pairs
extern const cpu::TiledKernel kAvx512Bf16FloatKernel;  // the others

}  // namespace regard::flash

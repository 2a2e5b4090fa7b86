#pragma once

#include "cpu/tiled.h"

namespace regard::efficient {

extern const cpu::TiledKernel kScalarKernel;
// x86-64 builds only:
extern const cpu::TiledKernel kAvx2Kernel;
extern const cpu::TiledKernel kAvx512Kernel;

}  // namespace regard::efficient

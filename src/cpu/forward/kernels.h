#pragma once

#include "cpu/forward/tiled.h"

namespace regard::cpu {

// Each instruction set's tiled forward, which FLASH and EFFICIENT share.
extern const TiledKernel kScalarForward;
// x86-64:
extern const TiledKernel kAvx2Forward;
extern const TiledKernel kAvx512Forward;
extern const TiledKernel kAvx512Bf16Forward;       // q, k and v all bf16: products of pairs
extern const TiledKernel kAvx512Bf16FloatForward;  // others: pairs of decode rows alone
extern const TiledKernel kAmxBf16Forward;          // the same: products of matrices
// AArch64:
extern const TiledKernel kNeonForward;
extern const TiledKernel kNeonBf16Forward;  // q, k and v all bf16: products of pairs

}  // namespace regard::cpu

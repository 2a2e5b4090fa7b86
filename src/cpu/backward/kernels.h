#pragma once

#include "cpu/backward/args.h"

namespace regard::cpu {

/// One instruction set's kernels.
struct BackwardKernels {
  BackwardKernel f32;           // in two passes; f32, bf16 and f16 inputs
  BackwardKernel f64;           // in two passes
  BackwardKernel one_pass_f32;  // f32, bf16 and f16 inputs
};

extern const BackwardKernels kScalarBackward;
// x86-64:
extern const BackwardKernels kAvx2Backward;
extern const BackwardKernels kAvx512Backward;
extern const BackwardKernel kAvx512Bf16Backward;  // in one pass; all tensors bf16
extern const BackwardKernel kAmxBf16Backward;     // likewise, and no functions
// AArch64:
extern const BackwardKernels kNeonBackward;
extern const BackwardKernel kNeonBf16Backward;

}  // namespace regard::cpu

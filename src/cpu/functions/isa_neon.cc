#include "cpu/functions/evaluate.inl"
#include "cpu/functions/function_kernel.h"
#include "cpu/simd/simd_neon.h"

namespace regard::cpu {

const FunctionKernel kNeonFunctionsF32 = kFunctions<simd_neon::Simd<float>>;
const FunctionKernel kNeonFunctionsF64 = kFunctions<simd_neon::Simd<double>>;

}  // namespace regard::cpu

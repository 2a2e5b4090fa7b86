#include "cpu/functions/evaluate.inl"
#include "cpu/functions/function_kernel.h"
#include "cpu/simd/simd_avx512.h"

namespace regard::cpu {

const FunctionKernel kAvx512FunctionsF32 = kFunctions<simd_avx512::Simd<float>>;
const FunctionKernel kAvx512FunctionsF64 = kFunctions<simd_avx512::Simd<double>>;

}  // namespace regard::cpu

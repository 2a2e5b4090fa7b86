#include "cpu/functions/evaluate.inl"
#include "cpu/functions/function_kernel.h"
#include "cpu/simd/simd_avx2.h"

namespace regard::cpu {

const FunctionKernel kAvx2FunctionsF32 = kFunctions<simd_avx2::Simd<float>>;
const FunctionKernel kAvx2FunctionsF64 = kFunctions<simd_avx2::Simd<double>>;

}  // namespace regard::cpu

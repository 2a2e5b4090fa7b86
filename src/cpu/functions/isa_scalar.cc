#include "cpu/functions/evaluate.inl"
#include "cpu/functions/function_kernel.h"
#include "cpu/simd/simd_scalar.h"

namespace regard::cpu {

const FunctionKernel kScalarFunctionsF32 = kFunctions<simd_scalar::Simd<float>>;
const FunctionKernel kScalarFunctionsF64 = kFunctions<simd_scalar::Simd<double>>;

}  // namespace regard::cpu

#include "cpu/backward/float_products.inl"
#include "cpu/backward/kernels.h"
#include "cpu/backward/one_pass.inl"
#include "cpu/backward/two_pass.inl"
#include "cpu/simd/simd_avx512.h"

namespace regard::cpu {
namespace {
using F32 = FloatProducts<simd_avx512::Simd<float>>;
using F64 = FloatProducts<simd_avx512::Simd<double>>;
}  // namespace

const BackwardKernels kAvx512Backward = {kTwoPass<F32>, kTwoPass<F64>, kOnePass<F32>};

}  // namespace regard::cpu

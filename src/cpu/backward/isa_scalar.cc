#include "cpu/backward/float_products.inl"
#include "cpu/backward/kernels.h"
#include "cpu/backward/one_pass.inl"
#include "cpu/backward/two_pass.inl"
#include "cpu/simd/simd_scalar.h"

namespace regard::cpu {
namespace {
using F32 = FloatProducts<simd_scalar::Simd<float>>;
using F64 = FloatProducts<simd_scalar::Simd<double>>;
}  // namespace

const BackwardKernels kScalarBackward = {kTwoPass<F32>, kTwoPass<F64>, kOnePass<F32>};

}  // namespace regard::cpu

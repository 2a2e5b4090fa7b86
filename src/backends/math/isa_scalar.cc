#include "backends/math/forward.inl"
#include "cpu/simd/simd_scalar.h"

namespace regard::math {
namespace {
using F32 = simd_scalar::Simd<float>;
using F64 = simd_scalar::Simd<double>;
}  // namespace

const Kernel kScalarF32 = {forward<F32>, F32::kWidth, F32::kLanes, sizeof(RowBlock<F32>),
                           sizeof(float)};
const Kernel kScalarF64 = {forward<F64>, F64::kWidth, F64::kLanes, sizeof(RowBlock<F64>),
                           sizeof(double)};

}  // namespace regard::math

#include "backends/math/forward.inl"
#include "cpu/simd/simd_neon.h"

namespace regard::math {
namespace {
using F32 = simd_neon::Simd<float>;
using F64 = simd_neon::Simd<double>;
}  // namespace

const Kernel kNeonF32 = {forward<F32>, F32::kWidth, F32::kLanes, sizeof(RowBlock<F32>),
                         sizeof(float)};
const Kernel kNeonF64 = {forward<F64>, F64::kWidth, F64::kLanes, sizeof(RowBlock<F64>),
                         sizeof(double)};

}  // namespace regard::math

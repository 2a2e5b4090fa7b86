#include "backends/math/forward.inl"
#include "cpu/simd/simd_avx2.h"

namespace regard::math {
namespace {
using F32 = simd_avx2::Simd<float>;
using F64 = simd_avx2::Simd<double>;
}  // namespace

const Kernel kAvx2F32 = {forward<F32>, F32::kWidth, F32::kLanes, sizeof(RowBlock<F32>),
                         sizeof(float)};
const Kernel kAvx2F64 = {forward<F64>, F64::kWidth, F64::kLanes, sizeof(RowBlock<F64>),
                         sizeof(double)};

}  // namespace regard::math

#include "cpu/rates/loops.inl"
#include "cpu/simd/simd_avx2.h"

namespace regard::cpu {

const RateLoops kAvx2Rates = {kMultiplyAdds<simd_avx2::Simd<float>>,
                              kMultiplyAdds<simd_avx2::Simd<double>>,
                              read_floats<simd_avx2::Simd<float>>};

}  // namespace regard::cpu

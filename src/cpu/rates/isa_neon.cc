#include "cpu/rates/loops.inl"
#include "cpu/simd/simd_neon.h"

namespace regard::cpu {

const RateLoops kNeonRates = {kMultiplyAdds<simd_neon::Simd<float>>,
                              kMultiplyAdds<simd_neon::Simd<double>>,
                              read_floats<simd_neon::Simd<float>>};

}  // namespace regard::cpu

#include "cpu/rates/loops.inl"
#include "cpu/simd/simd_avx512.h"

namespace regard::cpu {

const RateLoops kAvx512Rates = {kMultiplyAdds<simd_avx512::Simd<float>>,
                                kMultiplyAdds<simd_avx512::Simd<double>>,
                                read_floats<simd_avx512::Simd<float>>};

}  // namespace regard::cpu

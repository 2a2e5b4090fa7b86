#include "cpu/rates/loops.inl"
#include "cpu/simd/simd_scalar.h"

namespace regard::cpu {

const RateLoops kScalarRates = {kMultiplyAdds<simd_scalar::Simd<float>>,
                                kMultiplyAdds<simd_scalar::Simd<double>>,
                                read_floats<simd_scalar::Simd<float>>};

}  // namespace regard::cpu

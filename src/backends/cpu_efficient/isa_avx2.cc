#include "backends/cpu_efficient/forward.inl"
#include "cpu/simd_avx2.h"

namespace regard::efficient {
namespace {
using V = simd_avx2::Simd<float>;
}

const Kernel kAvx2Kernel = {forward<V>, V::kWidth, sizeof(Strip<V>)};

}  // namespace regard::efficient

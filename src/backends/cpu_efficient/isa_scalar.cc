#include "backends/cpu_efficient/forward.inl"
#include "cpu/simd_scalar.h"

namespace regard::efficient {
namespace {
using V = simd_scalar::Simd<float>;
}

const Kernel kScalarKernel = {forward<V>, V::kWidth, sizeof(Strip<V>)};

}  // namespace regard::efficient

#include "cpu/backward/kernels.h"
#include "cpu/backward/one_pass.inl"
#include "cpu/backward/pair_products.inl"
#include "cpu/simd/simd_neon_bf16.h"

namespace regard::cpu {
namespace {
using Pairs = PairProducts<simd_neon_bf16::Simd<float>>;
}

const BackwardKernel kNeonBf16Backward = kOnePass<Pairs>;

}  // namespace regard::cpu

#include "cpu/backward/amx_products.inl"
#include "cpu/backward/kernels.h"
#include "cpu/backward/one_pass.inl"
#include "cpu/simd/simd_avx512_bf16.h"

namespace regard::cpu {
namespace {

using Products = AmxProducts<simd_avx512_bf16::Simd<float>>;

/// The same with AMX's registers configured.
template <BackwardFn kKernel>
void configured(const void* args, std::int64_t task, char* scratch) {
  const amx::Configuration registers;
  kKernel(args, task, scratch);
}

/// Problems with functions are not its own: their kernels have row blocks of another width.
constexpr BackwardKernel amx_kernel() {
  BackwardKernel kernel = kOnePass<Products>;
  kernel.head = configured<backward_head<Products>>;
  kernel.d_bias = configured<backward_bias<Products>>;
  return kernel;
}

}  // namespace

const BackwardKernel kAmxBf16Backward = amx_kernel();

}  // namespace regard::cpu

#include "cpu/functions/functions.h"

#include <algorithm>

#include "cpu/simd/kernel_isa.h"
#include "function/program.h"

namespace regard::cpu {

const FunctionKernel& function_kernel(Isa isa, std::int64_t scalar_bytes) noexcept {
  const bool f64 = scalar_bytes == sizeof(double);
#if defined(__x86_64__)
  if (kernel_isa(isa) == Isa::kAvx512) return f64 ? kAvx512FunctionsF64 : kAvx512FunctionsF32;
  if (kernel_isa(isa) == Isa::kAvx2) return f64 ? kAvx2FunctionsF64 : kAvx2FunctionsF32;
#elif defined(__aarch64__)
  if (kernel_isa(isa) == Isa::kNeon) return f64 ? kNeonFunctionsF64 : kNeonFunctionsF32;
#endif
  static_cast<void>(isa);
  return f64 ? kScalarFunctionsF64 : kScalarFunctionsF32;
}

std::int64_t function_bytes(const AttentionParams& params, std::int64_t width, std::int64_t lanes,
                            std::int64_t scalar_bytes, bool is_backward) noexcept {
  const function::Programs& score = function::programs_of(params.score_function);
  const function::Programs& mask = function::programs_of(params.mask_function);
  const std::int64_t vector_bytes = lanes * scalar_bytes;
  std::int64_t max = 0;
  const auto add = [&](const semantics::FunctionProgram& program) {
    for (int vectors = 1; vectors <= width / lanes; ++vectors) {
      max = std::max(max, function_layout(program, vectors, vector_bytes).total);
    }
  };
  add(score.value.view);
  add(mask.value.view);
  if (is_backward) add(score.gradient.view);
  return max * vector_bytes;
}

}  // namespace regard::cpu

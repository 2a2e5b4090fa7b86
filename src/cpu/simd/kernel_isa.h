#pragma once

#include "regard/isa.h"

namespace regard::cpu {

/// The unit of f32 and f64 arithmetic that serves a machine of `isa`: the best that is built.
inline Isa kernel_isa(Isa isa) noexcept {
#if defined(__x86_64__)
  if (isa.includes(Isa::kAvx512)) return Isa::kAvx512;
  if (isa.includes(Isa::kAvx2)) return Isa::kAvx2;
#elif defined(__aarch64__)
  if (isa.includes(Isa::kNeon)) return Isa::kNeon;
#endif
  static_cast<void>(isa);
  return Isa::kScalar;
}

/// The unit that multiplies pairs of bf16 on this architecture.
inline Isa pairs_isa() noexcept {
#if defined(__aarch64__)
  return Isa::kNeonBf16;
#else
  return Isa::kAvx512Bf16;
#endif
}

}  // namespace regard::cpu

#pragma once

#include <algorithm>

#include "regard/env.h"

namespace regard::cpu {

/// The instruction set whose MATH kernels serve a machine of `isa`: the best that is built.
inline Isa kernel_isa(Isa isa) noexcept {
#if defined(__x86_64__)
  return std::min(isa, Isa::kAvx512);
#else
  static_cast<void>(isa);
  return Isa::kScalar;
#endif
}

}  // namespace regard::cpu

#pragma once

#include <cstdint>
#include <vector>

#include "regard/backend.h"

namespace regard::cuda {

/// The smallest compute capability * 10 whose kernels multiply on tensor cores: 80, or the smallest
/// above that a build is for.
#if defined(REGARD_TENSOR_SM)
inline constexpr std::int32_t kTensorSm = REGARD_TENSOR_SM;
#else
inline constexpr std::int32_t kTensorSm = 80;
#endif

/// The forwards whose probabilities tensor cores take, rounded to the inputs' type.
inline std::vector<DtypeClaim> tensor_forward_claims() {
  return {{Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 6e-3, Dtype::kBf16},
          {Dtype::kBf16, Dtype::kBf16, Dtype::kF32, 4e-3, Dtype::kBf16},
          {Dtype::kF16, Dtype::kF16, Dtype::kF16, 8e-4, Dtype::kF16},
          {Dtype::kF16, Dtype::kF16, Dtype::kF32, 5e-4, Dtype::kF16}};
}

/// The backwards that round gradients of scores, too.
inline std::vector<DtypeClaim> tensor_backward_claims() {
  return {{Dtype::kBf16, Dtype::kBf16, Dtype::kBf16, 8e-3, Dtype::kBf16},
          {Dtype::kF16, Dtype::kF16, Dtype::kF16, 1e-3, Dtype::kF16}};
}

}  // namespace regard::cuda

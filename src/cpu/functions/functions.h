#pragma once

#include <cstdint>

#include "cpu/functions/function_kernel.h"
#include "regard/isa.h"
#include "regard/params.h"

// What plans need of score and mask functions.

namespace regard::cpu {

/// The functions of kernels that serve a machine of `isa`, in arithmetic of `scalar_bytes`.
const FunctionKernel& function_kernel(Isa isa, std::int64_t scalar_bytes) noexcept;

/// Bytes of a worker's registers for the functions of a call, in row blocks of `width` lanes;
/// `is_backward`: for their derivatives too. 0 where there are none.
std::int64_t function_bytes(const AttentionParams& params, std::int64_t width, std::int64_t lanes,
                            std::int64_t scalar_bytes, bool is_backward) noexcept;

}  // namespace regard::cpu

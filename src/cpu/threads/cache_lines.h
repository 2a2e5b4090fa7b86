#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// What memory is asked for by: lines of the caches.

namespace regard::cpu {

inline constexpr std::int64_t kLineBytes = 64;

REGARD_KERNEL_FN constexpr std::int64_t lines_of(std::int64_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes;
}

}  // namespace regard::cpu

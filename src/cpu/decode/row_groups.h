#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "cpu/simd/product.h"

// What the loops over decode rows know at compile time: an element type, and up to four rows.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// An element type known to the compiler.
template <Element kType>
struct ElementConstant {
  static constexpr Element value = kType;
};

/// Calls f(ElementConstant) for the one of kTypes that `type` is; the last where it is none of
/// them.
template <Element kFirst, Element... kOthers, class F>
REGARD_KERNEL_FN void with_element(Element type, F f) {
  if constexpr (sizeof...(kOthers) > 0) {
    if (type != kFirst) return with_element<kOthers...>(type, f);
  }
  f(ElementConstant<kFirst>{});
}

/// Calls f(first, Count<size>) for blocks of 4 rows, and one of what is left.
template <class F>
REGARD_KERNEL_FN void for_row_groups(std::int64_t rows, F f) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) f(r, Count<4>{});
  switch (rows - r) {
    case 3: return f(r, Count<3>{});
    case 2: return f(r, Count<2>{});
    case 1: return f(r, Count<1>{});
    default: return;
  }
}

/// How many they are.
REGARD_KERNEL_FN std::int64_t row_groups(std::int64_t rows) { return (rows + 3) / 4; }

}  // namespace
}  // namespace regard::cpu

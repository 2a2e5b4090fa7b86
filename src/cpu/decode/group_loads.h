#pragma once

#include <cstdint>

#include "cpu/simd/simd_vector.h"

// Vectors of u4 as floats.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

template <class V>
struct GroupLoads {
  using T = typename V::Scalar;

  /// Of 32 elements of u4; with a table each is looked up.
  static constexpr bool kHasTable = requires(typename V::Vec x, const char* p) {
    V::load_u4_from(x, p);
  };
  struct Group {
    typename V::Vec scale, min;
  };
  REGARD_KERNEL_FN Group group_at(const char* groups, std::int64_t g) {
    const auto* const numbers = reinterpret_cast<const float*>(groups) + 2 * g;
    const Group group{V::set(static_cast<T>(numbers[0])), V::set(static_cast<T>(numbers[1]))};
    if constexpr (kHasTable) {
      return {V::group_table(group.scale, group.min), group.min};
    } else {
      return group;
    }
  }
  /// V::kLanes elements of a group.
  REGARD_KERNEL_FN typename V::Vec load_from(const Group& group, const char* codes) {
    if constexpr (kHasTable) {
      return V::load_u4_from(group.scale, codes);
    } else {
      return V::fma(V::load_u4(codes), group.scale, group.min);
    }
  }
};

}  // namespace
}  // namespace regard::cpu

#pragma once

#include <cstdint>

#include "regard/expression.h"

namespace regard::function {

/// A captured tensor as an expression reads it.
struct CapturedUse {
  std::int8_t rank = 0;  // indices; 0: it is not read
  bool is_int = false;
  bool conflicts = false;  // it is read with other numbers of indices, or as both types
};

/// What an expression reads.
struct Uses {
  bool score = false;
  bool position = false;  // q_pos
  bool captured = false;  // any
  CapturedUse of_slot[kMaxCaptured];
};

/// Of both.
constexpr Uses operator|(Uses a, const Uses& b) noexcept {
  a.score = a.score || b.score;
  a.position = a.position || b.position;
  a.captured = a.captured || b.captured;
  for (int i = 0; i < kMaxCaptured; ++i) {
    CapturedUse& to = a.of_slot[i];
    const CapturedUse& from = b.of_slot[i];
    if (from.rank == 0) continue;
    const bool differs = to.rank != 0 && (to.rank != from.rank || to.is_int != from.is_int);
    to = {from.rank, from.is_int, to.conflicts || from.conflicts || differs};
  }
  return a;
}

/// Nothing of an expression that is none, or has an error.
Uses uses_of(const Expression& expression) noexcept;

}  // namespace regard::function

#pragma once

#include <array>
#include <cstdint>

#include "oracle/functions.h"
#include "regard/case.h"
#include "regard/tensor.h"

// The captured tensors that the functions of a case read: a case states the functions alone.

namespace regard::conformance {

/// Integers of captured tensors that are indices of other ones are 0 to this.
inline constexpr std::int64_t kMaxCapturedIndex = 7;
inline constexpr std::int64_t kMaxCapturedExtent = std::int64_t{1} << 20;

struct CapturedSpec {
  bool is_read = false;
  bool is_int = false;
  bool is_index = false;      // its elements are indices of another tensor
  bool has_gradient = false;  // score_function reads it as real numbers
  int rank = 0;
  std::int64_t extent[kMaxRank] = {};  // that every index which the functions may compute lies in
};

/// By intervals of the case's indices and lengths. Where they prove no bound, as of an index that
/// may be negative, the extent is one that a call is refused for.
std::array<CapturedSpec, oracle::kCapturedCount> captured_of(const Case& c);

}  // namespace regard::conformance

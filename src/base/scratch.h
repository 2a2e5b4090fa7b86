#pragma once

#include <cstdint>

#include "base/checked.h"

namespace regard {

/// Lays regions of a worker's scratch one behind another, each on a 64-byte line.
class ScratchLayout {
 public:
  /// The offset of `count` elements of `bytes` each.
  std::int64_t take(std::int64_t count, std::int64_t bytes) noexcept {
    const std::int64_t at = total_;
    total_ = saturating_add(total_, round_up(saturating_mul(count, bytes), 64));
    return at;
  }
  /// Bytes of the whole, a multiple of 64 unless saturated at INT64_MAX.
  std::int64_t total() const noexcept { return total_; }

 private:
  std::int64_t total_ = 0;
};

}  // namespace regard

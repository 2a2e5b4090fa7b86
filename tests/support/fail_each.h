#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/support/allocations.h"

namespace regard::test {

/// Lets each allocation of a call fail in turn, alone and with all that follow.
/// try_one(n, extent, &last) runs the call with the n-th failing, returns what is wrong ("" where
/// nothing is) and sets `last` where no allocation failed. Returns how many could fail.
template <class TryOne>
int fail_each(const char* name, TryOne try_one) {
  constexpr std::uint64_t kMax = 5000;
  int failed = 0;
  for (const auto extent : {AllocationFailure::kOne, AllocationFailure::kAllFromThere}) {
    bool last = false;
    for (std::uint64_t n = 1; !last && n <= kMax; ++n) {
      const std::string wrong = try_one(n, extent, &last);
      if (!wrong.empty()) {
        ADD_FAILURE() << name << ", allocation " << n
                      << (extent == AllocationFailure::kOne ? " alone: " : " and all from there: ")
                      << wrong;
        return failed;
      }
      failed += last ? 0 : 1;
    }
    EXPECT_TRUE(last) << name << " has more than " << kMax << " allocations";
  }
  return failed;
}

}  // namespace regard::test

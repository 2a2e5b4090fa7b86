#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cpu/strip.h"

namespace regard::cpu {
namespace {

TEST(Strips, ShareTheVectorsEvenly) {
  constexpr std::int64_t kMost = 3;
  for (std::int64_t vectors = 1; vectors <= 30; ++vectors) {
    const std::int64_t strips = (vectors + kMost - 1) / kMost;
    EXPECT_EQ(share_begin(vectors, strips, 0), 0);
    EXPECT_EQ(share_begin(vectors, strips, strips), vectors);
    for (std::int64_t x = 0; x < strips; ++x) {
      const std::int64_t size =
          share_begin(vectors, strips, x + 1) - share_begin(vectors, strips, x);
      EXPECT_LE(size, kMost) << vectors;
      EXPECT_GE(size, std::min<std::int64_t>(vectors, 2)) << vectors;
    }
  }
}

}  // namespace
}  // namespace regard::cpu

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cpu/forward/row_block.h"

namespace regard::cpu {
namespace {

TEST(RowBlocks, ShareTheVectorsEvenly) {
  constexpr std::int64_t kMax = 3;
  for (std::int64_t vectors = 1; vectors <= 30; ++vectors) {
    const std::int64_t row_blocks = (vectors + kMax - 1) / kMax;
    EXPECT_EQ(share_begin(vectors, row_blocks, 0), 0);
    EXPECT_EQ(share_begin(vectors, row_blocks, row_blocks), vectors);
    for (std::int64_t x = 0; x < row_blocks; ++x) {
      const std::int64_t size =
          share_begin(vectors, row_blocks, x + 1) - share_begin(vectors, row_blocks, x);
      EXPECT_LE(size, kMax) << vectors;
      EXPECT_GE(size, std::min<std::int64_t>(vectors, 2)) << vectors;
    }
  }
}

}  // namespace
}  // namespace regard::cpu

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cpu/backward/args.h"

// How the pairs of a head's row and key blocks are divided in a backward of one pass.

namespace regard::cpu {
namespace {

constexpr std::int64_t kWidth = 48;

HeadGrid grid_of(std::int64_t rows, std::int64_t keys) { return head_grid(rows, keys, kWidth); }

std::int64_t chains(const HeadGrid& grid) {
  return std::min(grid.row_blocks * grid.key_ranges, grid.key_blocks * grid.row_ranges);
}

TEST(HeadGrid, IsAFunctionOfRowsAndKeys) {
  const HeadGrid small = grid_of(192, 128);
  EXPECT_EQ(small.row_blocks, 1);
  EXPECT_EQ(small.key_blocks, 1);
  EXPECT_EQ(count_grids(small), 1);
  EXPECT_EQ(grid_of(193, 129).row_blocks, 2);
  EXPECT_EQ(grid_of(193, 129).key_blocks, 2);
  EXPECT_EQ(grid_of(4096, 4096).key_ranges, 3);
  EXPECT_EQ(grid_of(4096, 4096).row_ranges, 2);
  EXPECT_EQ(count_grids(grid_of(16384, 16384)), 1);
  EXPECT_EQ(grid_of(0, 1000).key_blocks, 0);
  EXPECT_EQ(grid_of(1000, 0).row_blocks, 0);
}

// A pair takes some 0.15 ms: so many chains let a head's workers be as many as its milliseconds.
TEST(HeadGrid, HasChainsForManyWorkers) {
  for (const std::int64_t rows : {100, 1024, 2000, 4096, 10000, 100000}) {
    for (const std::int64_t keys : {100, 1024, 2000, 4096, 10000, 100000}) {
      const HeadGrid grid = grid_of(rows, keys);
      const std::int64_t pairs = grid.row_blocks * grid.key_blocks;
      EXPECT_GE(chains(grid), std::min<std::int64_t>(64, pairs / 6)) << rows << " " << keys;
      EXPECT_LE(count_grids(grid), std::max<std::int64_t>(pairs / 3, 1)) << rows << " " << keys;
    }
  }
}

// A memory serves every sequence within the extents that it was laid out for.
TEST(HeadGrid, ThereIsRoomForTheSumsOfShorterSequences) {
  for (std::int64_t rows = 1; rows <= 90; ++rows) {
    for (std::int64_t keys = 1; keys <= 90; ++keys) {
      const HeadGrid grid = grid_of(rows * 192, keys * 128);
      for (const std::int64_t more : {0, 1, 40, 500}) {
        ASSERT_LE(grid.row_blocks * grid.key_ranges, max_summed_blocks(rows + more, keys + more));
        ASSERT_LE(grid.key_blocks * grid.row_ranges, max_summed_blocks(keys + more, rows + more));
      }
    }
  }
  constexpr std::int64_t kHuge = INT64_MAX;
  EXPECT_GE(max_summed_blocks(kHuge / 128, kHuge / 128), kHuge / 128);
}

TEST(HeadGrid, ItemsAreTwiceTheRunsOfKeyBlocksAndTheEnds) {
  const HeadGrid grid = grid_of(4096, 4096);  // 22 and 32 blocks, six grids
  EXPECT_EQ(count_items(head_items(grid, 32, 1)), 2 * 11 * 6 + 32);
  EXPECT_EQ(count_items(head_items(grid, 32, 3)), 2 * 4 * 6 + 32);
}

}  // namespace
}  // namespace regard::cpu

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cpu/split.h"
#include "semantics/splits.h"

// How keys are divided: a rule of the sequence's own rows and length.

namespace regard::cpu {
namespace {

using semantics::split_count;

TEST(Split, SplitsAreWholeTilesThatCoverEveryKeyOnce) {
  for (const std::int64_t tile_kv : {16, 32, 48, 64, 96, 128}) {
    for (std::int64_t length = 0; length <= 20000; ++length) {
      std::int64_t next = 0;
      const std::int64_t count = split_count(length);
      for (std::int64_t index = 0; index < count; ++index) {
        const semantics::KeyRange keys = split_keys(length, tile_kv, index);
        ASSERT_EQ(keys.lo, next) << length;
        ASSERT_EQ(keys.lo % tile_kv, 0) << length;
        next = keys.hi;
      }
      ASSERT_EQ(next, length);
      ASSERT_TRUE(semantics::is_empty(split_keys(length, tile_kv, count))) << length;
    }
  }
}

// Workers wait for the largest split: of 4096 keys in tiles of 96, seven splits of 576 left 64.
TEST(Split, SplitsDifferByATileAtMost) {
  for (const std::int64_t tile_kv : {16, 32, 48, 64, 96, 128}) {
    for (std::int64_t length = 1; length <= 20000; ++length) {
      const std::int64_t count = split_count(length), tiles = (length + tile_kv - 1) / tile_kv;
      for (std::int64_t index = 0; index < count; ++index) {
        const semantics::KeyRange keys = split_keys(length, tile_kv, index);
        const std::int64_t size = (keys.hi - keys.lo + tile_kv - 1) / tile_kv;
        ASSERT_GE(size, tiles / count) << length;
        ASSERT_LE(size, (tiles + count - 1) / count) << length;
      }
    }
  }
}

TEST(Split, CountsGrowWithTheLengthTo16) {
  EXPECT_EQ(split_count(0), 1);
  EXPECT_EQ(split_count(512), 1);
  EXPECT_EQ(split_count(513), 2);
  EXPECT_EQ(split_count(7681), 16);
  EXPECT_EQ(split_count(std::int64_t{1} << 40), 16);
}

TEST(Split, FewRowsHaveAPartFor1024KeysBeyond16384) {
  for (const std::int64_t length : {0, 1, 512, 513, 4000, 8192, 16384, 17407}) {
    EXPECT_EQ(num_splits(kSplitRows, length), split_count(length)) << length;
  }
  EXPECT_EQ(num_splits(1, 17408), 17);
  EXPECT_EQ(num_splits(1, 32768), 32);
  EXPECT_EQ(num_splits(1, std::int64_t{1} << 40), 64);
}

TEST(Split, MoreRowsHaveAPartFor2048KeysBeyond8192) {
  EXPECT_EQ(num_splits(65, 8192), 1);
  EXPECT_EQ(num_splits(65, 8193), 4);
  EXPECT_EQ(num_splits(128, 32768), 16);
  EXPECT_EQ(num_splits(65, std::int64_t{1} << 20), 63);
  EXPECT_EQ(num_splits(512, std::int64_t{1} << 20), 8);
  EXPECT_EQ(num_splits(2048, 16384), 2);
  EXPECT_EQ(num_splits(2049, 1 << 20), 1);
}

TEST(Split, SplitsOfAnyCountAreWholeTilesThatCoverEveryKeyOnce) {
  for (const std::int64_t length : {8193, 9000, 16385, 33000, 70001}) {
    for (const std::int64_t rows : {1, 65, 300, 4096}) {
      std::int64_t next = 0;
      const std::int64_t count = num_splits(rows, length);
      for (std::int64_t index = 0; index < count; ++index) {
        const semantics::KeyRange keys = split_keys(length, 96, count, index);
        ASSERT_EQ(keys.lo, next) << length;
        ASSERT_EQ(keys.lo % 96, 0) << length;
        next = keys.hi;
      }
      ASSERT_EQ(next, length) << rows;
    }
  }
}

// A plan's memory serves every smaller call.
TEST(Split, TheWorkspaceFitsSplitsOfFewerRowsAndKeys) {
  constexpr std::int64_t kWidth = 48;
  for (const std::int64_t length : {8192, 8193, 20000, 200000}) {
    for (std::int64_t rows = kSplitRows + 1; rows < 3000; ++rows) {
      const std::int64_t splits = num_splits(rows, length);
      const std::int64_t row_blocks = splits > 1 ? splits * ((rows + kWidth - 1) / kWidth) : 0;
      for (const std::int64_t more : {rows, rows + 1, rows + 100, std::int64_t{5000}}) {
        ASSERT_LE(row_blocks, max_split_row_blocks(more, length, kWidth)) << rows << " of " << more;
        ASSERT_LE(row_blocks, max_split_row_blocks(more, length + 5000, kWidth))
            << rows << " of " << more;
      }
    }
  }
}

TEST(Split, RunsTakeEverySplitOnceAndStayAmongNeighbours) {
  for (std::int64_t splits = 1; splits <= kMaxSplits; ++splits) {
    for (std::int64_t runs = 1; runs <= 5; ++runs) {
      std::vector<int> taken(static_cast<std::size_t>(splits), 0);
      for (std::int64_t step = 0; step < split_steps(splits, runs); ++step) {
        const std::int64_t split = split_of_step(splits, runs, step);
        if (split < splits) ++taken[static_cast<std::size_t>(split)];
        if (step >= runs) {
          EXPECT_EQ(split, split_of_step(splits, runs, step - runs) + 1);
        }
      }
      EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << splits << " in " << runs;
    }
  }
}

}  // namespace
}  // namespace regard::cpu

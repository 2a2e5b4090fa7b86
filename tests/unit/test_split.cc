#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cpu/split.h"

// How the keys of few rows are divided: a rule of the length alone.

namespace regard::cpu {
namespace {

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

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "semantics/row_bounds.h"
#include "semantics/score_edits.h"
#include "semantics/tiles.h"

namespace regard::semantics {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// All of it works at compile time, on any device.
static_assert(visible_keys(Band{0, -1, 0, 10}, 3).hi == 4);
static_assert(classify_tile(Band{0, -1, 0, 8}, 0, 4, 4, 8, false) == TileClass::kEmpty);
static_assert(kv_head(5, 4) == 1);

/// The definition, in arithmetic that cannot wrap.
bool visible(const Band& band, std::int64_t i, std::int64_t j) {
  __extension__ using Wide = __int128;
  const Wide distance = Wide{j} - (Wide{i} + band.shift);
  if (band.window_right >= 0 && distance > band.window_right) return false;
  if (band.window_left >= 0 && -distance > band.window_left) return false;
  return j < band.len_kv;
}

TEST(RowBounds, MatchTheDefinition) {
  for (const std::int64_t left : {-1, 0, 1, 5, 40}) {
    for (const std::int64_t right : {-1, 0, 2, 40}) {
      for (const std::int64_t shift : {-20, -3, 0, 1, 7, 30}) {
        for (const std::int64_t len : {0, 1, 13}) {
          const Band band{shift, left, right, len};
          for (std::int64_t i = 0; i < 12; ++i) {
            const KeyRange keys = visible_keys(band, i);
            for (std::int64_t j = 0; j < 14; ++j) {
              EXPECT_EQ(j >= keys.lo && j < keys.hi, visible(band, i, j));
            }
          }
        }
      }
    }
  }
}

TEST(RowBounds, HostileNumbersSaturateWithoutMovingAnEnd) {
  for (const std::int64_t shift : {kMin, kMin + 1, kMin + 7, kMax - 7, kMax - 1, kMax}) {
    for (const std::int64_t window : {std::int64_t{0}, std::int64_t{5}, kMax - 6, kMax}) {
      for (const std::int64_t i : {std::int64_t{0}, std::int64_t{3}, kMax / 2}) {
        const Band both{shift, window, window, 12};
        const KeyRange keys = visible_keys(both, i);
        for (std::int64_t j = 0; j < 12; ++j) {
          EXPECT_EQ(j >= keys.lo && j < keys.hi, visible(both, i, j))
              << shift << " " << window << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(Tiles, ClassesHoldForEveryElement) {
  int counts[3] = {};
  for (const std::int64_t left : {-1, 0, 6}) {
    for (const std::int64_t right : {-1, 0, 9}) {
      for (const std::int64_t shift : {-5, 0, 4}) {
        const Band band{shift, left, right, 21};
        for (std::int64_t i = 0; i < 24; i += 4) {
          for (std::int64_t j = 0; j < 21; j += 3) {
            bool any = false, all = true;
            for (std::int64_t x = i; x < i + 4; ++x) {
              for (std::int64_t y = j; y < j + 3; ++y) {
                any = any || visible(band, x, y);
                all = all && visible(band, x, y);
              }
            }
            const TileClass tile = classify_tile(band, i, i + 4, j, j + 3, false);
            ++counts[static_cast<int>(tile)];
            EXPECT_EQ(tile == TileClass::kFull, all);
            EXPECT_EQ(tile == TileClass::kEmpty, !any);
            const TileClass opaque = classify_tile(band, i, i + 4, j, j + 3, true);
            EXPECT_EQ(opaque, tile == TileClass::kEmpty ? tile : TileClass::kPartial);
          }
        }
      }
    }
  }
  for (const int count : counts) EXPECT_GT(count, 50);
}

TEST(Tiles, RangeOfABlockIsTheUnionOfItsRows) {
  const Band band{-2, 3, 4, 30};
  for (std::int64_t i = 0; i < 30; i += 5) {
    const KeyRange block = visible_keys(band, i, i + 5);
    std::int64_t lo = 30, hi = 0;
    for (std::int64_t x = i; x < i + 5; ++x) {
      const KeyRange row = visible_keys(band, x);
      if (is_empty(row)) continue;
      lo = std::min(lo, row.lo);
      hi = std::max(hi, row.hi);
    }
    if (lo < hi) {
      EXPECT_EQ(block.lo, lo);
      EXPECT_EQ(block.hi, hi);
    }
  }
  EXPECT_TRUE(is_empty(visible_keys(band, 5, 5)));
}

TEST(ScoreEdits, AlibiMeasuresFromTheDiagonal) {
  EXPECT_EQ(alibi_bias(0.5, diagonal_position(3, 4), 2), -2.5);
  EXPECT_EQ(alibi_bias(0.5, diagonal_position(3, 4), 9), -1.0);
  EXPECT_EQ(diagonal_distance(kMax, 0), kMax);
  EXPECT_EQ(diagonal_distance(kMin, 5), kMax);
  EXPECT_EQ(diagonal_distance(kMin + 3, 3), kMax);
}

TEST(ScoreEdits, Softcap) {
  const auto tanh = [](double x) { return std::tanh(x); };
  EXPECT_DOUBLE_EQ(softcap_score(3.0, 2.0, tanh), 2.0 * std::tanh(1.5));
}

}  // namespace
}  // namespace regard::semantics

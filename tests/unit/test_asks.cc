#include <gtest/gtest.h>

#include <cstdint>

#include "cpu/asks.h"

// What row blocks ask memory for at a tile: its values, and the next tile's keys.

namespace regard::cpu {
namespace {

constexpr semantics::Tile kFirst{96, 96};
constexpr semantics::Tile kLast{192, 58};

class AsksOfTile : public testing::Test {
 protected:
  AsksOfTile() {
    problem_.seqlen_kv = 250;
    problem_.head_dim_qk = 64;
    problem_.head_dim_v = 40;
    problem_.k = view(keys_, Element::kF32, 1000);
    problem_.v = view(values_, Element::kBf16, 300);
  }

  /// At a tile of head 3 of sequence 1.
  TileAsks asks(std::int64_t row_blocks, semantics::Tile tile) const {
    return TileAsks::at_tile(problem_, 1, {3, 0, 1, row_blocks}, tile);
  }

  void expect_values(const AskedRows& rows, std::int64_t j, std::int64_t count) const {
    EXPECT_EQ(rows.at, values_ + (50000 + 3 * 70 + j * 300) * 2);
    EXPECT_EQ(rows.stride, 600);
    EXPECT_EQ(rows.row_lines, 2);  // of 80 bytes
    EXPECT_EQ(rows.rows, count);
  }
  void expect_keys(const AskedRows& rows, std::int64_t j, std::int64_t count) const {
    EXPECT_EQ(rows.at, keys_ + (50000 + 3 * 70 + j * 1000) * 4);
    EXPECT_EQ(rows.stride, 4000);
    EXPECT_EQ(rows.row_lines, 4);
    EXPECT_EQ(rows.rows, count);
  }

 private:
  static View view(const char* data, Element type, std::int64_t row) {
    View v{};
    v.data = const_cast<char*>(data);
    v.type = type;
    v.stride[0] = 50000;
    v.stride[1] = 70;
    v.stride[2] = row;
    return v;
  }

  Problem problem_{};
  const char* keys_ = reinterpret_cast<const char*>(0x10000000);  // only computed with
  const char* values_ = reinterpret_cast<const char*>(0x20000000);
};

TEST_F(AsksOfTile, ManyRowBlocksPrefetchTheNextKeysAfterTheValues) {
  TileAsks at = asks(8, kFirst);
  expect_values(*TileAsks::with_keys(&at), 96, 96);
  at.values.rows = 0;
  expect_keys(*TileAsks::with_keys(&at), 192, 58);
  EXPECT_FALSE(is_left(at.few_row_blocks));
}

TEST_F(AsksOfTile, FewRowBlocksPrefetchThemInProductsWithValues) {
  TileAsks at = asks(2, kFirst);
  expect_values(*TileAsks::with_keys(&at), 96, 96);
  expect_keys(at.few_row_blocks, 192, 58);
  at.values.rows = 0;
  EXPECT_FALSE(is_left(*TileAsks::with_keys(&at)));
}

TEST_F(AsksOfTile, NothingFollowsTheLastTile) {
  for (const std::int64_t row_blocks : {1, 8}) {
    const TileAsks at = asks(row_blocks, kLast);
    expect_values(at.values, 192, 58);
    EXPECT_FALSE(is_left(at.keys));
    EXPECT_FALSE(is_left(at.few_row_blocks));
  }
}

TEST(AskedRows, EachLineOfABlockOfRowsThenTheNextBlock) {
  const char* const first = reinterpret_cast<const char*>(0x10000000);
  AskedRows rows{first, 1000, 2, 2, 10};
  ask_rows<4>(&rows);
  EXPECT_EQ(rows.at, first + 64);
  ask_rows<4>(&rows);
  EXPECT_EQ(rows.at, first + 4 * 1000);
  EXPECT_EQ(rows.rows, 6);
  for (int x = 0; x < 4; ++x) {
    EXPECT_TRUE(is_left(rows));
    ask_rows<4>(&rows);
  }
  EXPECT_FALSE(is_left(rows));
  const char* const end = rows.at;
  ask_rows<4>(&rows);
  EXPECT_EQ(rows.at, end);
}

}  // namespace
}  // namespace regard::cpu

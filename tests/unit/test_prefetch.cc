#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/prefetch.h"

// Which addresses are prefetched: by row blocks a tile's values and the next tile's keys, by few
// rows the next tile, each line once.

namespace regard::cpu {
namespace {

const char* address(std::int64_t value) { return reinterpret_cast<const char*>(value); }

constexpr semantics::Tile kFirst{96, 96};
constexpr semantics::Tile kLast{192, 58};
const char* const kKeyRows = address(0x10000000);  // only computed with
const char* const kValueRows = address(0x20000000);

/// 250 keys of 64 f32 4000 bytes apart, and of 40 bf16 600 bytes apart.
TilePrefetch prefetch_at(std::int64_t row_blocks, semantics::Tile tile) {
  const KvOperand k{kKeyRows, 4000, 280, 64, 250, 1.0, Element::kF32};
  const KvOperand v{kValueRows, 600, 140, 40, 250, 1.0, Element::kBf16};
  return tile_prefetch(k, v, row_blocks, tile);
}

void expect_values(const PrefetchCursor& cursor, std::int64_t j, std::int64_t count) {
  EXPECT_EQ(cursor.at, kValueRows + j * 600);
  EXPECT_EQ(cursor.end, cursor.at + 80);
  EXPECT_EQ(cursor.stride, 600);
  EXPECT_EQ(cursor.rows, count);
}

void expect_keys(const PrefetchCursor& cursor, std::int64_t j, std::int64_t count) {
  EXPECT_EQ(cursor.at, kKeyRows + j * 4000);
  EXPECT_EQ(cursor.end, cursor.at + 256);
  EXPECT_EQ(cursor.stride, 4000);
  EXPECT_EQ(cursor.rows, count);
}

TEST(TilePrefetch, ManyRowBlocksPrefetchTheNextKeysAfterTheValues) {
  TilePrefetch at = prefetch_at(8, kFirst);
  expect_values(*cursor_with_keys(&at), 96, 96);
  at.values = {};
  expect_keys(*cursor_with_keys(&at), 192, 58);
  EXPECT_FALSE(is_left(at.few_row_blocks));
}

TEST(TilePrefetch, FewRowBlocksPrefetchThemInProductsWithValues) {
  TilePrefetch at = prefetch_at(2, kFirst);
  expect_values(*cursor_with_keys(&at), 96, 96);
  expect_keys(at.few_row_blocks, 192, 58);
  at.values = {};
  EXPECT_FALSE(is_left(*cursor_with_keys(&at)));
}

TEST(TilePrefetch, NothingFollowsTheLastTile) {
  for (const std::int64_t row_blocks : {1, 8}) {
    const TilePrefetch at = prefetch_at(row_blocks, kLast);
    expect_values(at.values, 192, 58);
    EXPECT_FALSE(is_left(at.keys));
    EXPECT_FALSE(is_left(at.few_row_blocks));
  }
}

TEST(PrefetchCursor, EachLineOfABlockOfRowsThenTheNextBlock) {
  const char* const first = address(0x10000000);
  PrefetchCursor cursor{first, first + 80, 80, 1000, 10};  // two lines a row
  prefetch_rows<4>(&cursor);
  EXPECT_EQ(cursor.at, first + 64);
  prefetch_rows<4>(&cursor);
  EXPECT_EQ(cursor.at, first + 4 * 1000);
  EXPECT_EQ(cursor.end, cursor.at + 80);
  EXPECT_EQ(cursor.rows, 6);
  for (int x = 0; x < 4; ++x) {
    EXPECT_TRUE(is_left(cursor));
    prefetch_rows<4>(&cursor);
  }
  EXPECT_FALSE(is_left(cursor));
  const char* const end = cursor.at;
  prefetch_rows<4>(&cursor);
  EXPECT_EQ(cursor.at, end);
}

constexpr std::int64_t kHeads = 5;  // not a divisor of a tile
constexpr std::int64_t kKeys = 40;  // the last tile is short

/// Strides of rows of f32, in elements.
struct Layout {
  const char* name;
  std::int64_t head, key;
};

void PrintTo(const Layout& layout, std::ostream* to) { *to << layout.name; }

class NextTileOf : public testing::TestWithParam<Layout> {
 protected:
  NextTileOf() : memory_(2 * kBytes) {
    problem_.seqlen_kv = kKeys;
    problem_.head_dim_qk = problem_.head_dim_v = kDim;
    for (View* view : {&problem_.k, &problem_.v}) {
      view->stride[1] = GetParam().head;
      view->stride[2] = GetParam().key;
      view->stride[3] = 1;
    }
    problem_.k.data = memory_.data();
    problem_.v.data = memory_.data() + kBytes;
  }

  static void count(PrefetchCursor cursor, const char* memory, std::vector<int>* times) {
    while (is_left(cursor)) {
      const char* const at = cursor.at;
      prefetch_lines<kLinesEach>(&cursor, kLinesEach);
      ASSERT_NE(cursor.at, at);
      for (std::int64_t byte = 0; byte < kBytesEach; ++byte) {
        ++(*times)[static_cast<std::size_t>(at - memory + byte)];
      }
    }
  }

  /// How often each byte is prefetched by the heads in turn, 16 keys a tile.
  std::vector<int> prefetched(std::int64_t heads, semantics::Tile tile) const {
    std::vector<int> times(memory_.size() + kBytesEach);
    for (std::int64_t head = 0; head < heads; ++head) {
      const NextTilePrefetch next = next_tile_prefetch(
          k_operand(problem_, 0, head), v_operand(problem_, 0, head), {head, head, heads, 1}, tile);
      for (const PrefetchCursor& cursor : {next.keys, next.values}) {
        count(cursor, memory_.data(), &times);
      }
    }
    return times;
  }

  static constexpr int kLinesEach = 2;
  static constexpr std::int64_t kBytesEach = kLinesEach * 64;
  static constexpr std::int64_t kDim = 64;  // rows of twice that
  static constexpr std::int64_t kBytes = kHeads * kKeys * kDim * 2 * 4;
  Problem problem_;
  std::vector<char> memory_;
};

TEST_P(NextTileOf, IsPrefetchedOnce) {
  for (const std::int64_t heads : {std::int64_t{1}, kHeads}) {
    for (const std::int64_t begin : {0, 16, 32}) {
      const semantics::Tile tile{begin, begin == 32 ? 8 : 16};
      const std::vector<int> times = prefetched(heads, tile);
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t key = 0; key < kKeys; ++key) {
          const bool is_next = h < heads && key >= begin + 16 && key < begin + 32;
          const std::int64_t at = (h * GetParam().head + key * GetParam().key) * 4;
          for (const std::int64_t tensor : {std::int64_t{0}, kBytes}) {
            for (std::int64_t byte = 0; byte < kDim * 4; ++byte) {
              const int found = times[static_cast<std::size_t>(tensor + at + byte)];
              ASSERT_EQ(found, is_next) << heads << " heads, tile at " << begin << ", head " << h
                                        << ", key " << key << ", byte " << byte;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, NextTileOf,
                         testing::Values(Layout{"BHSD", kKeys * 64, 64},
                                         Layout{"BSHD", 64, kHeads * 64},
                                         Layout{"apart", 2 * 64, 2 * kHeads * 64},
                                         Layout{"padded", kKeys * 2 * 64, 2 * 64}),
                         [](const auto& layout) { return std::string(layout.param.name); });

TEST(RepeatedPrefetch, LoopsShareTheLines) {
  const std::int64_t shares[][2] = {{1, 4}, {2, 2}, {3, 2}, {4, 1}, {9, 1}};  // early, not never
  for (const auto [repeats, lines] : shares) EXPECT_EQ(lines_each({{}, repeats}, 4), lines);
}

TEST(PrefetchCursor, AdvancesByTheLinesThatItIsGiven) {
  const std::vector<char> memory(1 << 12);
  for (const auto prefetch : {prefetch_lines<4>, prefetch_lines<0>}) {
    for (const std::int64_t lines : {1, 2, 4}) {
      PrefetchCursor cursor{memory.data(), memory.data() + memory.size(), 0, 0, 1};
      prefetch(&cursor, lines);
      EXPECT_EQ(cursor.at, memory.data() + lines * 64);
    }
  }
}

}  // namespace
}  // namespace regard::cpu

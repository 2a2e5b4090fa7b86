#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/decode/tile_ahead.h"

// Which addresses decode rows prefetch: those of a later tile, each line once, wherever it lies.

namespace regard::cpu {
namespace {

TiledArgs tiles_of(std::int64_t tile_kv) {
  TiledArgs args;
  args.decode_tile_kv = tile_kv;
  return args;
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

  static void count(LinesCursor cursor, const char* memory, std::vector<int>* times) {
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
      for (const KvOperand& x : {k_operand(problem_, 0, head), v_operand(problem_, 0, head)}) {
        const TaskAhead ahead = task_ahead(tiles_of(16), x, heads, 0);
        count(lines_ahead(x, ahead, head, PageRuns{}, tile), memory_.data(), &times);
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

/// What a head prefetches at a tile, line by line, as offsets from its first row.
std::vector<std::int64_t> lines_of_tile(const KvOperand& x, std::int64_t head, std::int64_t heads,
                                        semantics::Tile tile) {
  const std::int64_t tile_kv = tile.size;
  PageRuns pages;
  pages.start(x, {0, tile_kv}, tile_kv);
  for (std::int64_t begin = 0; begin <= tile.begin; begin += tile_kv) {
    pages.find(x, {begin, tile_kv});
  }
  const TaskAhead ahead = task_ahead(tiles_of(tile_kv), x, heads, pages.run_keys());
  std::vector<std::int64_t> lines;
  for (LinesCursor cursor = lines_ahead(x, ahead, head, pages, tile); is_left(cursor);) {
    lines.push_back(cursor.at - x.first);
    prefetch_lines<1>(&cursor, 1);
  }
  return lines;
}

/// Pages of `size` keys in an order of their own.
class PagesOf : public testing::TestWithParam<std::int64_t> {
 protected:
  static constexpr std::int64_t kDim = 64, kRow = kDim * 4, kTile = 32, kLength = 384;
  PagesOf() : memory_(static_cast<std::size_t>(kLength * kRow * kOfHeads)) {
    const std::int64_t size = GetParam(), count = kLength / size;
    for (std::int64_t i = 0; i < count; ++i) {
      ids_.push_back(static_cast<std::int32_t>((i * 7 + 3) % count));
    }
    x_ = {memory_.data(), kRow, 0, kDim, kLength, 1.0, Element::kF32};
    x_.pages = {ids_.data(), 1, size, size * kRow * kOfHeads, 0};
  }
  std::int64_t row_at(std::int64_t key) const {
    const std::int64_t size = GetParam(), page = ids_[static_cast<std::size_t>(key / size)];
    return page * x_.pages.stride + key % size * x_.stride;
  }
  static constexpr std::int64_t kOfHeads = 4;
  std::vector<char> memory_;
  std::vector<std::int32_t> ids_;
  KvOperand x_{};
};

// The second tile ahead, key by key.
TEST_P(PagesOf, AHeadAtATime) {
  for (const std::int64_t begin : {0, 64, 256, 320}) {
    std::vector<std::int64_t> expected;
    for (std::int64_t key = begin + 64; key < begin + 96 && key < kLength; ++key) {
      for (std::int64_t byte = 0; byte < kRow; byte += 64) expected.push_back(row_at(key) + byte);
    }
    EXPECT_EQ(lines_of_tile(x_, 0, 1, {begin, kTile}), expected) << begin;
  }
}

// Heads that are neighbours, [pages, keys, heads, dim]: whole keys, some of each tile's.
TEST_P(PagesOf, NeighboursShareTheKeysOfATile) {
  x_.head_stride = kRow;
  x_.stride = kOfHeads * kRow;
  std::vector<std::int64_t> expected, found;
  for (std::int64_t key = 96; key < 128; ++key) {
    for (std::int64_t byte = 0; byte < x_.stride; byte += 64) {
      expected.push_back(row_at(key) + byte);
    }
  }
  for (std::int64_t head = 0; head < kOfHeads; ++head) {
    KvOperand x = x_;
    x.first += head * kRow;
    const auto lines = lines_of_tile(x, head, kOfHeads, {32, kTile});
    for (const std::int64_t line : lines) found.push_back(line + head * kRow);
  }
  EXPECT_EQ(found, expected);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PagesOf, testing::Values(1, 3, 16, 48, 128),
                         [](const auto& size) { return std::to_string(size.param); });

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

TEST(RepeatedPrefetch, OfRowsHalfAsLongThereAreHalfAsManyLines) {
  const std::int64_t shares[][2] = {{1, -2}, {2, -1}, {3, -1}};
  for (const auto [repeats, lines] : shares) EXPECT_EQ(lines_each({{}, repeats, true}, 4), lines);
  const std::vector<char> memory(1 << 12);
  for (const auto prefetch : {prefetch_lines<4, true>, prefetch_lines<0, true>}) {
    for (const std::int64_t lines : {-2, -1, 4}) {
      LinesCursor cursor{};
      cursor.at = memory.data();
      cursor.end = memory.data() + memory.size();
      prefetch(&cursor, lines);
      EXPECT_EQ(cursor.at, memory.data() + (lines < 0 ? -lines : lines) * 64);
    }
  }
}

TEST(LinesCursor, AdvancesByTheLinesThatItIsGiven) {
  const std::vector<char> memory(1 << 12);
  for (const auto prefetch : {prefetch_lines<4>, prefetch_lines<0>}) {
    for (const std::int64_t lines : {1, 2, 4}) {
      LinesCursor cursor{};
      cursor.at = memory.data();
      cursor.end = memory.data() + memory.size();
      prefetch(&cursor, lines);
      EXPECT_EQ(cursor.at, memory.data() + lines * 64);
    }
  }
}

}  // namespace
}  // namespace regard::cpu

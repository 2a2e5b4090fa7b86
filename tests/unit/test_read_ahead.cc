#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/read_ahead.h"

// What is asked for ahead: all heads of a task together ask for the next tile, once and in order.

namespace regard::cpu {
namespace {

constexpr std::int64_t kHeads = 5;  // not a divisor of a tile
constexpr std::int64_t kKeys = 40;  // the last tile is short

/// Strides of rows of f32, in elements.
struct Layout {
  const char* name;
  std::int64_t head, key;
};

void PrintTo(const Layout& layout, std::ostream* to) { *to << layout.name; }

class ReadAheadOf : public testing::TestWithParam<Layout> {
 protected:
  ReadAheadOf() : memory_(2 * kBytes) {
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

  static void count(RowsAhead rows, const char* memory, std::vector<int>* times) {
    while (rows.at < rows.end) {
      const char* const at = rows.at;
      ask<kAskedLines>(&rows, kAskedLines);
      ASSERT_NE(rows.at, at);
      for (std::int64_t byte = 0; byte < kAskedBytes; ++byte) {
        ++(*times)[static_cast<std::size_t>(at - memory + byte)];
      }
    }
  }

  /// How often each byte is asked for by the heads in turn, 16 keys a tile.
  std::vector<int> asked(std::int64_t heads, semantics::Tile tile) const {
    std::vector<int> times(memory_.size() + kAskedBytes);
    for (std::int64_t head = 0; head < heads; ++head) {
      const ReadAhead next = read_ahead(problem_, 0, {head, head, heads, 1}, tile);
      for (const RowsAhead& rows : {next.keys, next.values}) count(rows, memory_.data(), &times);
    }
    return times;
  }

  static constexpr int kAskedLines = 2;
  static constexpr std::int64_t kAskedBytes = kAskedLines * 64;
  static constexpr std::int64_t kDim = 64;  // rows of twice that
  static constexpr std::int64_t kBytes = kHeads * kKeys * kDim * 2 * 4;
  Problem problem_;
  std::vector<char> memory_;
};

TEST_P(ReadAheadOf, NextTileIsAskedForOnce) {
  for (const std::int64_t heads : {std::int64_t{1}, kHeads}) {
    for (const std::int64_t begin : {0, 16, 32}) {
      const semantics::Tile tile{begin, begin == 32 ? 8 : 16};
      const std::vector<int> times = asked(heads, tile);
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

INSTANTIATE_TEST_SUITE_P(Layouts, ReadAheadOf,
                         testing::Values(Layout{"BHSD", kKeys * 64, 64},
                                         Layout{"BSHD", 64, kHeads * 64},
                                         Layout{"apart", 2 * 64, 2 * kHeads * 64},
                                         Layout{"padded", kKeys * 2 * 64, 2 * 64}),
                         [](const auto& layout) { return std::string(layout.param.name); });

TEST(ReadAhead, TurnsShareTheLines) {
  const std::int64_t parts[][2] = {{1, 4}, {2, 2}, {3, 2}, {4, 1}, {9, 1}};  // early, not never
  for (const auto [turns, lines] : parts) EXPECT_EQ(Asking::part_of({{}, turns}, 4), lines);
}

TEST(ReadAhead, AsksForAsManyLinesAsItIsTold) {
  const std::vector<char> memory(1 << 12);
  for (const auto ask_some : {ask<4>, ask<0>}) {
    for (const std::int64_t lines : {1, 2, 4}) {
      RowsAhead rows{memory.data(), memory.data() + memory.size(), 0, 0, 0};
      ask_some(&rows, lines);
      EXPECT_EQ(rows.at, memory.data() + lines * 64);
    }
  }
}

}  // namespace
}  // namespace regard::cpu

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/prefetch.h"

// Which addresses are prefetched: by row blocks a tile's values and the next tile's keys, at the
// last tile what the next task reads, by few rows the next tile, each line once.

namespace regard::cpu {
namespace {

const char* address(std::int64_t value) { return reinterpret_cast<const char*>(value); }

constexpr semantics::Tile kFirst{96, 96};
constexpr semantics::Tile kLast{192, 58};
const char* const kKeyRows = address(0x10000000);  // only computed with
const char* const kValueRows = address(0x20000000);

const char* const kNextKeyRows = address(0x30000000);
const char* const kQueryRows = address(0x40000000);
const char* const kOutRows = address(0x50000000);

/// 250 keys of 64 f32 4000 bytes apart, and of 40 bf16 600 bytes apart; behind them a task of 5
/// keys and 3 queries. Rows see keys up to reach_end.
void start_at(std::int64_t row_blocks, semantics::Tile tile, TilePrefetch* prefetch,
              std::int64_t reach_end = 250) {
  const KvOperand k{kKeyRows, 4000, 280, 64, 250, 1.0, Element::kF32};
  const KvOperand v{kValueRows, 600, 140, 40, 250, 1.0, Element::kBf16};
  TaskPrefetch task{};
  task.keys = {kNextKeyRows, kNextKeyRows + 256, 256, 256, 5};
  task.queries = {kQueryRows, kQueryRows + 256, 256, 256, 3};
  task.outs = {kOutRows, kOutRows + 256, 256, 256, 4};
  TilePrefetch::start(k, v, {0, 0, 1, row_blocks, reach_end}, tile, task, prefetch);
}

struct Rows {
  const char* first;
  std::int64_t row_bytes;
  std::int64_t stride;
  std::int64_t rows;
};

/// That exactly these rows are prefetched, in this order, each line once.
void expect_rows(PrefetchCursor cursor, const std::vector<Rows>& expected) {
  for (const Rows& rows : expected) {
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      const std::int64_t lines = lines_of(rows.row_bytes), each = cursor.in_pairs ? 2 : 1;
      for (std::int64_t line = 0; line < lines; line += each) {
        ASSERT_TRUE(is_left(cursor));
        ASSERT_EQ(cursor.at, rows.first + row * rows.stride + line * kLineBytes);
        prefetch_rows<1>(&cursor);
      }
    }
  }
  EXPECT_FALSE(is_left(cursor));
}

constexpr std::int64_t kValueBytes = 80, kKeyBytes = 256;

TEST(TilePrefetch, TheTilesValuesThenTheNextKeys) {
  for (const std::int64_t row_blocks : {1, 2, 3, 8}) {
    TilePrefetch at;
    start_at(row_blocks, kFirst, &at);
    expect_rows(at.left, {{kValueRows + 96 * 600, kValueBytes, 600, 96},
                          {kKeyRows + 192 * 4000, kKeyBytes, 4000, 58}});
    EXPECT_EQ(at.with_values, row_blocks <= 2);
    EXPECT_FALSE(at.left.in_pairs);
  }
}

TEST(TilePrefetch, AtTheLastTileWhatTheNextTaskReadsAndThisOneWrites) {
  for (const std::int64_t row_blocks : {1, 2, 8}) {
    TilePrefetch at;
    start_at(row_blocks, kLast, &at);
    expect_rows(at.left, {{kValueRows + 192 * 600, kValueBytes, 600, 58},
                          {kNextKeyRows, kKeyBytes, 256, 5},
                          {kQueryRows, kKeyBytes, 256, 3},
                          {kOutRows, kKeyBytes, 256, 4}});
    EXPECT_EQ(at.left.in_pairs, row_blocks == 1);
  }
}

// Keys that no row sees are not prefetched: the tile before them is the last one.
TEST(TilePrefetch, TheLastTileIsTheLastOneThatIsSeen) {
  TilePrefetch at;
  start_at(2, kFirst, &at, kFirst.begin + kFirst.size);
  expect_rows(at.left, {{kValueRows + 96 * 600, kValueBytes, 600, 96},
                        {kNextKeyRows, kKeyBytes, 256, 5},
                        {kQueryRows, kKeyBytes, 256, 3},
                        {kOutRows, kKeyBytes, 256, 4}});
}

TEST(TaskPrefetch, IsOfTheNextTaskAndOfTheOwnOutputs) {
  Problem p;
  p.batch = 2;
  p.num_heads_q = 6;
  p.num_heads_kv = 3;
  p.group_size = 2;
  p.seqlen_q = 7;
  p.seqlen_kv = 5;
  p.head_dim_qk = 64;
  p.head_dim_v = 32;
  const auto place = [](View* view, const char* data, std::int64_t heads, std::int64_t rows,
                        std::int64_t dim) {
    view->data = const_cast<char*>(data);
    view->type = Element::kF32;
    view->present = true;
    view->stride[0] = rows * heads * dim;  // [B, S, H, D]
    view->stride[1] = dim;
    view->stride[2] = heads * dim;
    view->stride[3] = 1;
  };
  place(&p.q, kQueryRows, 6, 7, 64);
  place(&p.k, kKeyRows, 3, 5, 64);
  place(&p.out, kOutRows, 6, 7, 32);
  TaskPrefetch task = task_prefetch(p, {{0, 2, 4, 14}, {1, 1, 2, 10}}, 96);
  expect_rows(task.keys, {{kKeyRows + (5 * 3 + 1) * 64 * 4, 256, 3 * 256, 5}});
  expect_rows(task.queries, {{kQueryRows + (8 * 6 + 2) * 64 * 4, 512, 6 * 256, 4}});
  expect_rows(task.outs, {{kOutRows + (2 * 6 + 4) * 32 * 4, 256, 6 * 128, 5}});
  task = task_prefetch(p, {{0, 2, 4, 14}, {}}, 3);
  EXPECT_FALSE(is_left(task.keys) || is_left(task.queries));
  EXPECT_TRUE(is_left(task.outs));
  EXPECT_EQ(task_prefetch(p, {{}, {1, 1, 0, 2}}, 3).keys.rows, 3);
  // A group's heads that are apart are not prefetched.
  p.q.stride[1] = 128;
  EXPECT_FALSE(is_left(task_prefetch(p, {{}, {1, 1, 0, 2}}, 3).queries));
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
      for (const KvOperand& x : {k_operand(problem_, 0, head), v_operand(problem_, 0, head)}) {
        TileAhead ahead;
        prefetch_ahead(x, {head, head, heads, 1, kKeys}, tile, &ahead);
        count(ahead.runs[0], memory_.data(), &times);
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

// Tiles of 64 keys over pages of 16, in an order of their own: the second tile ahead, run by run.
TEST(TileAhead, GoesFromPageToPage) {
  constexpr std::int64_t kPage = 16, kDim = 64, kBytes = kPage * kDim * 4;
  const std::int32_t ids[] = {3, 0, 11, 7, 2, 9, 5, 1, 10, 4, 8, 6};
  const std::vector<char> memory(12 * kBytes);
  KvOperand x{memory.data(), kDim * 4, 0, kDim, 12 * kPage, 1.0, Element::kF32};
  x.pages = {ids, 1, kPage, kBytes, 0};
  TileAhead ahead;
  prefetch_ahead(x, {0, 0, 1, 1, 12 * kPage}, {0, 64}, &ahead);
  PrefetchCursor cursor = ahead.runs[0];
  for (int page = 8; page < 12; ++page) {
    for (std::int64_t line = 0; line < kBytes / 64; ++line) {
      ASSERT_TRUE(is_left(cursor));
      ASSERT_EQ(cursor.at - memory.data(), ids[page] * kBytes + line * 64);
      prefetch_lines<1>(&cursor, 1);
    }
  }
  EXPECT_FALSE(is_left(cursor));
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

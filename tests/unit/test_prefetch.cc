#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/prefetch.h"

// Which addresses are prefetched: by row blocks a tile's values and the next tile's keys, at the
// last tile what the task writes and the next task reads, each line once.

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

/// Cursors point at those of the task.
struct Started {
  TaskPrefetch task;
  TilePrefetch at;
};

/// 250 keys of 64 f32 4000 bytes apart, and of 40 bf16 600 bytes apart; 4 outputs, and behind them
/// a task of 5 keys and 3 queries. Rows see keys up to reach_end.
void start_at(std::int64_t row_blocks, semantics::Tile tile, Started* started,
              std::int64_t reach_end = 250) {
  const KvOperand k{kKeyRows, 4000, 280, 64, 250, 1.0, Element::kF32};
  const KvOperand v{kValueRows, 600, 140, 40, 250, 1.0, Element::kBf16};
  TaskPrefetch& task = started->task;
  const bool in_pairs = row_blocks == 1;
  task.queries = {kQueryRows, kQueryRows + 256, 256, 256, 3, nullptr, in_pairs};
  task.keys = {kNextKeyRows, kNextKeyRows + 256, 256, 256, 5, &task.queries, in_pairs};
  task.outs = {kOutRows, kOutRows + 256, 256, 256, 4, &task.keys, in_pairs};
  task.first = &task.outs;
  TilePrefetch::start(k, v, {0, 0, 1, reach_end}, tile, task, row_blocks, &started->at);
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
    Started started;
    start_at(row_blocks, kFirst, &started);
    expect_rows(started.at.left, {{kValueRows + 96 * 600, kValueBytes, 600, 96},
                                  {kKeyRows + 192 * 4000, kKeyBytes, 4000, 58}});
    EXPECT_EQ(started.at.with_values, row_blocks <= 2);
    EXPECT_FALSE(started.at.left.in_pairs);
  }
}

TEST(TilePrefetch, AtTheLastTileWhatThisTaskWritesAndTheNextOneReads) {
  for (const std::int64_t row_blocks : {1, 2, 8}) {
    Started started;
    start_at(row_blocks, kLast, &started);
    expect_rows(started.at.left, {{kValueRows + 192 * 600, kValueBytes, 600, 58},
                                  {kOutRows, kKeyBytes, 256, 4},
                                  {kNextKeyRows, kKeyBytes, 256, 5},
                                  {kQueryRows, kKeyBytes, 256, 3}});
    EXPECT_TRUE(started.at.with_values);
    EXPECT_EQ(started.at.left.in_pairs, row_blocks == 1);
  }
}

// Keys that no row sees are not prefetched: the tile before them is the last one.
TEST(TilePrefetch, TheLastTileIsTheLastOneThatIsSeen) {
  Started started;
  start_at(2, kFirst, &started, kFirst.begin + kFirst.size);
  expect_rows(started.at.left, {{kValueRows + 96 * 600, kValueBytes, 600, 96},
                                {kOutRows, kKeyBytes, 256, 4},
                                {kNextKeyRows, kKeyBytes, 256, 5},
                                {kQueryRows, kKeyBytes, 256, 3}});
}

TEST(TaskPrefetch, IsOfTheOwnOutputsAndOfTheNextTask) {
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
  place(&p.v, kValueRows, 3, 5, 32);
  place(&p.out, kOutRows, 6, 7, 32);
  const Rows outs{kOutRows + (2 * 6 + 4) * 32 * 4, 256, 6 * 128, 5};
  const Rows keys{kKeyRows + (5 * 3 + 1) * 64 * 4, 256, 3 * 256, 5};
  const Rows queries{kQueryRows + (8 * 6 + 2) * 64 * 4, 512, 6 * 256, 4};
  for (const std::int64_t row_blocks : {1, 2}) {
    TaskPrefetch task;
    TaskPrefetch::start(p, {{0, 2, 4, 14}, {1, 1, 2, 10}, row_blocks}, 96, &task);
    EXPECT_EQ(task.first->in_pairs, row_blocks == 1);
    expect_rows(*task.first, {outs, keys, queries});
    TaskPrefetch::start(p, {{0, 2, 4, 14}, {}, row_blocks}, 3, &task);
    expect_rows(*task.first, {outs});
  }
  TaskPrefetch task;
  TaskPrefetch::start(p, {{}, {1, 1, 0, 2}, 2}, 3, &task);
  EXPECT_EQ(task.first, &task.keys);
  EXPECT_EQ(task.keys.rows, 3);
  // A group's heads that are apart are not prefetched.
  p.q.stride[1] = 128;
  TaskPrefetch::start(p, {{}, {1, 1, 0, 2}, 2}, 3, &task);
  EXPECT_EQ(task.keys.then, nullptr);
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

}  // namespace
}  // namespace regard::cpu

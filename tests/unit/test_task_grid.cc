#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/backward/args.h"
#include "cpu/threads/run_tasks.h"

// How rows are divided into tasks: each row is in one task, whatever the workers.

namespace regard::cpu {
namespace {

constexpr std::int64_t kTaskWidth = 48;

AttentionParams grid_params(std::int64_t seqlen_q) {
  AttentionParams params;
  params.batch = 2;
  params.num_heads_q = 6;
  params.num_heads_kv = 3;
  params.seqlen_q = seqlen_q;
  return params;
}

Problem problem_of(const AttentionParams& params) {
  Problem p{};
  p.batch = params.batch;
  p.num_heads_q = params.num_heads_q;
  p.num_heads_kv = params.num_heads_kv;
  p.group_size = params.num_heads_q / params.num_heads_kv;
  p.seqlen_q = params.seqlen_q;
  return p;
}

TEST(TaskGrid, EachRowIsInOneTask) {
  for (const std::int64_t seqlen_q : {1, 23, 24, 25, 192, 193, 500}) {
    const AttentionParams params = grid_params(seqlen_q);
    const Problem p = problem_of(params);
    const std::int64_t rows = rows_per_head(params);
    for (const std::int64_t row_blocks : {1, 2, 8}) {
      for (const std::int32_t workers : {1, 2, 3, 100}) {
        const TaskGrid grid = with_sub_blocks(params, make_grid(params, row_blocks * kTaskWidth),
                                              kTaskWidth, workers);
        std::vector<int> times(static_cast<std::size_t>(params.batch * 3 * rows));
        for (std::int64_t task = 0; task < count_tasks(params, grid); ++task) {
          const TaskRows t = task_rows(p, grid, task);
          ASSERT_LE(t.begin, t.end);
          ASSERT_LE(t.end - t.begin, row_blocks * kTaskWidth);
          ASSERT_TRUE(t.begin % kTaskWidth == 0 || t.begin == t.end);
          for (std::int64_t row = t.begin; row < t.end; ++row) {
            ++times[static_cast<std::size_t>((t.b * 3 + t.head_kv) * rows + row)];
          }
        }
        EXPECT_EQ(std::count(times.begin(), times.end(), 1), params.batch * 3 * rows);
      }
    }
  }
}

TEST(TaskGrid, TheLastBlocksComeInPairsOfRowBlocks) {
  const AttentionParams params =
      grid_params(1920);  // ten blocks of 8 row blocks for each of six heads
  const TaskGrid grid = with_sub_blocks(params, make_grid(params, 8 * kTaskWidth), kTaskWidth, 3);
  EXPECT_EQ(count_tasks(params, grid), 60 - 4 + 4 * 4);
  const Problem p = problem_of(params);
  const auto size = [&](std::int64_t task) {
    const TaskRows t = task_rows(p, grid, task);
    return t.end - t.begin;
  };
  EXPECT_EQ(size(55), 8 * kTaskWidth);
  EXPECT_EQ(size(56), 2 * kTaskWidth);
  EXPECT_EQ(size(71), 2 * kTaskWidth);
}

TEST(TaskGrid, TheLastSmallBlockOfEachWorkerIsDivided) {
  const AttentionParams params = grid_params(1920);
  const TaskGrid grid = with_sub_blocks(params, make_grid(params, 2 * kTaskWidth), kTaskWidth, 3);
  EXPECT_EQ(count_tasks(params, grid), 240 - 3 + 3 * 2);
}

TEST(TaskGrid, BlocksOfVectorsFillTheRoundsOfManyWorkers) {
  constexpr std::int64_t kLanes = 16, kMaxRowBlocks = 8;
  AttentionParams params = grid_params(4096);
  params.batch = params.num_heads_q = params.num_heads_kv = 1;
  const auto rows = [&](std::int32_t workers) {
    return choose_block_rows(params, kTaskWidth, kLanes, kMaxRowBlocks, workers);
  };
  EXPECT_EQ(rows(1), 8 * kTaskWidth);
  EXPECT_EQ(rows(2), 8 * kTaskWidth);
  EXPECT_EQ(rows(64), 64);  // 64 tasks
  for (std::int32_t workers = 1; workers <= 256; ++workers) {
    EXPECT_EQ(rows(workers) % kLanes, 0) << workers;
    EXPECT_LE(rows(workers), kMaxRowBlocks * kTaskWidth) << workers;
    const std::int64_t tasks = count_tasks(params, rows(workers));
    const double rounds =
        static_cast<double>((tasks + workers - 1) / workers * rows(workers) * workers);
    if (workers > 64) continue;
    EXPECT_LE(rounds, 4096 / 0.8) << workers;
  }
  params.features.set(Feature::kCausal);  // the longest rows are twice the mean
  EXPECT_LE(rows(64), 32);
}

TEST(TaskGrid, OneWorkerNeedsNoSubBlocks) {
  const AttentionParams params = grid_params(1920);
  const TaskGrid grid = with_sub_blocks(params, make_grid(params, 8 * kTaskWidth), kTaskWidth, 1);
  EXPECT_EQ(count_tasks(params, grid), 60);
}

TEST(TaskGrid, BlocksOfABackwardAreEven) {
  for (const std::int64_t width : {8, 16, 48}) {
    for (std::int64_t rows = 1; rows <= 2000; ++rows) {
      const HeadGrid grid = head_grid(rows, 300, width);
      EXPECT_EQ(grid.block_rows % width, 0) << rows;
      EXPECT_LE(grid.block_rows, kBlockQueries) << rows;
      EXPECT_EQ(grid.row_blocks, (rows + kBlockQueries - 1) / kBlockQueries) << rows;
      EXPECT_GE(grid.row_blocks * grid.block_rows, rows) << rows;
      EXPECT_LT((grid.row_blocks - 1) * grid.block_rows, rows) << rows;
      // No block has a whole vector more than an even one.
      EXPECT_LT((grid.block_rows - width) * grid.row_blocks, rows) << rows;
    }
  }
}

}  // namespace
}  // namespace regard::cpu

#pragma once

#include <cstdint>

#include "problem/element.h"
#include "problem/problem.h"
#include "semantics/splits.h"

// The problem as the CPU's kernels divide it.

namespace regard::cpu {

using namespace problem;  // its words are theirs
using semantics::share_begin;

/// Outputs, and tiles of K and V, are padded to a multiple of this in head_dim.
inline constexpr std::int64_t kHeadDimUnit = 8;

REGARD_KERNEL_FN constexpr std::int64_t padded_head_dim(std::int64_t head_dim) {
  return (head_dim + kHeadDimUnit - 1) / kHeadDimUnit * kHeadDimUnit;
}

/// Keys that are summed by themselves before they join the total of a row, so that no chain of
/// additions grows with the number of keys: whole tiles of every length, on an absolute grid.
inline constexpr std::int64_t kSumBlockKeys = 1536;

/// Where a task lies: all rows of one (b, kv head) are its queries times the heads of the group,
/// head fastest (row = i * group_size + g), so that one read of K and V serves a whole group.
struct TaskGrid {
  std::int64_t rows_per_task = 1;
  std::int64_t blocks = 0;  // per (b, kv head)
  std::int64_t whole = 0;   // blocks that are a task; those after them are `sub_blocks` tasks each
  std::int64_t sub_blocks = 1;
};

struct TaskRows {
  std::int64_t b = 0;
  std::int64_t head_kv = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A kv head, the index-th of `count` that a task takes through each tile in turn, each with
/// `row_blocks` row blocks.
struct TaskHead {
  std::int64_t head_kv;
  std::int64_t index;
  std::int64_t count;
  std::int64_t row_blocks;
};

/// Blocks, and their pieces, come last first: under a causal mask the longest rows start first. A
/// piece may be empty.
REGARD_KERNEL_FN TaskRows task_rows(const Problem& p, const TaskGrid& grid, std::int64_t task) {
  const std::int64_t sub_blocks = task < grid.whole ? 1 : grid.sub_blocks;
  const std::int64_t sub_block = task < grid.whole ? 0 : (task - grid.whole) % sub_blocks;
  const std::int64_t index =
      task < grid.whole ? task : grid.whole + (task - grid.whole) / sub_blocks;
  const std::int64_t block = grid.blocks - 1 - index % grid.blocks;
  const std::int64_t bh = index / grid.blocks;
  const std::int64_t rows = p.seqlen_q * p.group_size, size = grid.rows_per_task / sub_blocks;
  const std::int64_t begin = block * grid.rows_per_task + (sub_blocks - 1 - sub_block) * size;
  TaskRows t{};
  t.b = bh / p.num_heads_kv;
  t.head_kv = bh % p.num_heads_kv;
  t.begin = begin < rows ? begin : rows;
  t.end = begin + size < rows ? begin + size : rows;
  return t;
}

}  // namespace regard::cpu

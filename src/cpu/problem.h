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
  std::int64_t blocks = 0;      // of one (b, kv head); where sequences are packed, of the longest
  std::int64_t all_blocks = 0;  // of all sequences, for one kv head
  std::int64_t whole = 0;  // blocks that are a task; those after them are `sub_blocks` tasks each
  std::int64_t sub_blocks = 1;
  // Packed sequences, the longest first, and how many blocks end with each; see packed_blocks.h.
  const std::int64_t* order = nullptr;
  const std::int64_t* block_ends = nullptr;
};

/// A block of the grid, the index-th of `count` of its (b, kv head).
struct BlockPlace {
  std::int64_t b;
  std::int64_t head_kv;
  std::int64_t index;
  std::int64_t count;
};

REGARD_KERNEL_FN BlockPlace block_place(const Problem& p, const TaskGrid& grid, std::int64_t n) {
  if (grid.order == nullptr) {
    const std::int64_t bh = n / grid.blocks;
    return {bh / p.num_heads_kv, bh % p.num_heads_kv, n % grid.blocks, grid.blocks};
  }
  const std::int64_t block = n / p.num_heads_kv;
  std::int64_t first = 0, last = p.batch - 1;  // the sequence with the block is one of these
  while (first < last) {
    const std::int64_t middle = (first + last) / 2;
    if (grid.block_ends[middle] > block) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  const std::int64_t begin = first > 0 ? grid.block_ends[first - 1] : 0;
  const std::int64_t count = grid.block_ends[first] - begin, at = n - begin * p.num_heads_kv;
  return {grid.order[first], at / count, at % count, count};
}

struct TaskRows {
  std::int64_t b = 0;
  std::int64_t head_kv = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A task's rows, and those that its worker mostly computes next; none after the last task.
struct TaskOrder {
  TaskRows now;
  TaskRows next;
  std::int64_t row_blocks;  // of a head
};

/// A kv head, the index-th of `count` that a task takes through each tile in turn.
struct TaskHead {
  std::int64_t head_kv;
  std::int64_t index;
  std::int64_t count;
  std::int64_t reach_end;  // of the keys that some row sees
};

/// Blocks, and their pieces, come last first: under a causal mask the longest rows start first. A
/// piece may be empty.
REGARD_KERNEL_FN TaskRows task_rows(const Problem& p, const TaskGrid& grid, std::int64_t task) {
  const std::int64_t sub_blocks = task < grid.whole ? 1 : grid.sub_blocks;
  const std::int64_t sub_block = task < grid.whole ? 0 : (task - grid.whole) % sub_blocks;
  const std::int64_t index =
      task < grid.whole ? task : grid.whole + (task - grid.whole) / sub_blocks;
  const BlockPlace at = block_place(p, grid, index);
  const std::int64_t rows = sequence_rows(p.q.starts, p.seqlen_q, at.b) * p.group_size;
  const std::int64_t size = grid.rows_per_task / sub_blocks;
  const std::int64_t begin =
      (at.count - 1 - at.index) * grid.rows_per_task + (sub_blocks - 1 - sub_block) * size;
  TaskRows t{};
  t.b = at.b;
  t.head_kv = at.head_kv;
  t.begin = begin < rows ? begin : rows;
  t.end = begin + size < rows ? begin + size : rows;
  return t;
}

}  // namespace regard::cpu

#pragma once

#include <cstdint>

#include "cuda/rows.cuh"

// The tasks of a grid: one number each, taken apart by the block that has it.

namespace regard::cuda {

/// Calls f(task) for the block's share of `tasks`. Between tasks shared memory is free for all.
template <class Block, class F>
REGARD_DEVICE_FN void for_each_task(const Block& block, std::int64_t tasks, F f) {
  for (std::int64_t task = block.index(); task < tasks; task += block.count()) {
    f(task);
    block.sync();
  }
}

/// A block of rows, or of keys, of a (b, kv head), and a range of columns of its result.
struct HeadTask {
  std::int64_t b, head_kv, block, columns;
};

struct HeadGrid {
  std::int64_t blocks = 0;   // of one (b, kv head)
  std::int64_t columns = 1;  // ranges
};

REGARD_KERNEL_FN std::int64_t count_tasks(const Problem& p, const HeadGrid& grid) {
  return p.batch * p.num_heads_kv * grid.blocks * grid.columns;
}

/// A head's blocks are neighbours, so that they share its K and V in the cache; the last comes
/// first: under a causal mask it has the most keys.
REGARD_KERNEL_FN HeadTask head_task(const Problem& p, const HeadGrid& grid, std::int64_t task) {
  HeadTask t{};
  t.columns = task % grid.columns;
  task /= grid.columns;
  t.block = grid.blocks - 1 - task % grid.blocks;
  task /= grid.blocks;
  t.b = task / p.num_heads_kv;
  t.head_kv = task % p.num_heads_kv;
  return t;
}

/// Calls f(HeadTask) for the block's share of the grid's tasks.
template <class Block, class F>
REGARD_DEVICE_FN void for_each_head_task(const Block& block, const Problem& p, const HeadGrid& grid,
                                         F f) {
  for_each_task(block, count_tasks(p, grid),
                [&](std::int64_t task) { f(head_task(p, grid, task)); });
}

}  // namespace regard::cuda

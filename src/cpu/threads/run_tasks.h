#pragma once

#include <atomic>
#include <cstdint>

#include "cpu/problem.h"
#include "regard/backend.h"

namespace regard::cpu {

/// A kernel's entry: computes one task in `scratch`, the worker's own and of arbitrary contents.
using TaskFn = void (*)(const void* args, std::int64_t task, char* scratch);

struct TaskLoop {
  TaskFn fn = nullptr;
  const void* args = nullptr;
  std::int64_t tasks = 0;
  std::int64_t scratch_bytes = 0;    // a worker's
  bool wait_for_each_other = false;  // then an interrupted call still runs each of them
};

struct TaskRange {
  std::int64_t begin;
  std::int64_t end;  // not above begin when none is left
};

/// The next few tasks of `tasks`, of which `next` is the first that no worker has. Neighbours in
/// the tensors stay on one worker: 64 x 12 heads of 32 tokens in BSHD ran 1.4 times as fast on two
/// threads as with every other head on the other one. Shorter runs towards the end, and none long,
/// so that a worker that loses its core holds up few tasks.
TaskRange take_tasks(std::atomic<std::int64_t>* next, std::int64_t tasks,
                     std::int64_t workers) noexcept;

/// Runs every task once on at most `workers` workers of the launch; a free worker takes the next
/// few.
void run_tasks(const TaskLoop& loop, std::int32_t workers, const Launch& launch);

/// The launch with what is left of its workspace behind the first `bytes`.
Launch behind(const Launch& launch, std::int64_t bytes) noexcept;

/// Workers that a call is worth waking, at most `workers`: a small one is over before they are up.
std::int32_t useful_workers(const AttentionParams& params, std::int32_t workers) noexcept;

/// Workers that a plan states: env's, but not more than are useful or have tasks at the key's
/// extents.
std::int32_t plan_workers(const Env& env, const AttentionParams& params,
                          std::int64_t tasks) noexcept;

/// Rows of one (b, kv head): queries times the heads of a group; saturating.
std::int64_t rows_per_head(const AttentionParams& params) noexcept;

/// Tasks of all (b, kv head) when one covers `rows_per_task` rows; saturating.
std::int64_t count_tasks(const AttentionParams& params, std::int64_t rows_per_task) noexcept;

/// Row blocks of `width` rows per task: at most `max_row_blocks` (more row blocks share one read of
/// K and V), but fewer while that leaves less than four tasks a worker, so that uneven tasks
/// balance. Changes no bits.
std::int64_t choose_row_blocks(const AttentionParams& params, std::int64_t width,
                               std::int64_t max_row_blocks, std::int32_t workers) noexcept;

/// The rows of a block: those of choose_row_blocks; where these are single row blocks, as many
/// whole vectors of `lanes` rows as make the shortest rounds of tasks: 4,096 rows are 86 row blocks
/// of 48, two rounds of 64 workers, or 64 blocks of 64 rows, which are one. Changes no bits.
std::int64_t choose_block_rows(const AttentionParams& params, std::int64_t width,
                               std::int64_t lanes, std::int64_t max_row_blocks,
                               std::int32_t workers) noexcept;

/// Blocks of `rows_per_task` rows for each (b, kv head); of packed sequences as many as there may
/// be, until count_packed_blocks has counted them.
TaskGrid make_grid(const AttentionParams& params, std::int64_t rows_per_task) noexcept;

/// The same of keys.
TaskGrid make_key_grid(const AttentionParams& params, std::int64_t keys_per_task) noexcept;

/// The same, but the last block of each worker comes in row blocks of `width` rows, so that workers
/// end together: 1.04 times as fast at 512 tokens of 12 heads on two threads, 1.01 at 2,048. Of
/// blocks of four row blocks and more, the last three of two workers come in pairs of row blocks: a
/// worker that takes such a block towards the end is behind all others. Changes no bits.
TaskGrid with_sub_blocks(const AttentionParams& params, TaskGrid grid, std::int64_t width,
                         std::int32_t workers) noexcept;

std::int64_t count_tasks(const AttentionParams& params, const TaskGrid& grid) noexcept;

}  // namespace regard::cpu

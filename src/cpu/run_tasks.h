#pragma once

#include <atomic>
#include <cstdint>

#include "cpu/problem.h"
#include "regard/backend.h"

namespace regard::cpu {

/// A kernel's entry: computes one task in `scratch`, the slot's own and of arbitrary contents.
using TaskFn = void (*)(const void* args, std::int64_t task, char* scratch);

struct TaskLoop {
  TaskFn fn = nullptr;
  const void* args = nullptr;
  std::int64_t tasks = 0;
  std::int64_t scratch_bytes = 0;    // a slot's
  bool wait_for_each_other = false;  // then an interrupted call still runs each of them
};

struct TaskRange {
  std::int64_t begin;
  std::int64_t end;  // not above begin when none is left
};

/// The next few tasks of `tasks`, of which `next` is the first that no slot has. Neighbours in the
/// tensors stay on one slot: 64 x 12 heads of 32 tokens in BSHD ran 1.4 times as fast on two
/// threads as with every other head on the other one. Shorter runs towards the end, and none long,
/// so that a slot that loses its core holds up few tasks.
TaskRange take_tasks(std::atomic<std::int64_t>* next, std::int64_t tasks,
                     std::int64_t slots) noexcept;

/// Runs every task once on at most `slots` slots of the launch; whoever is free takes the next few.
void run_tasks(const TaskLoop& loop, std::int32_t slots, const Launch& launch);

/// Slots that a call is worth waking, at most `slots`: a small one is over before they are up.
std::int32_t useful_slots(const AttentionParams& params, std::int32_t slots) noexcept;

/// Slots that a plan states: env's, but not more than are useful or have tasks at the key's
/// extents.
std::int32_t plan_slots(const Env& env, const AttentionParams& params, std::int64_t tasks) noexcept;

/// Rows of one (b, kv head): queries times the heads of a group; saturating.
std::int64_t rows_per_head(const AttentionParams& params) noexcept;

/// Tasks of all (b, kv head) when one covers `rows_per_task` rows; saturating.
std::int64_t count_tasks(const AttentionParams& params, std::int64_t rows_per_task) noexcept;

/// Strips of `width` rows per task: at most `max_strips` (more strips share one read of K and V),
/// but fewer while that leaves less than four tasks a slot, so that uneven tasks balance. Changes
/// no bits.
std::int64_t choose_strips(const AttentionParams& params, std::int64_t width,
                           std::int64_t max_strips, std::int32_t slots) noexcept;

/// Blocks of `rows_per_block` rows for each (b, kv head).
TaskGrid make_grid(const AttentionParams& params, std::int64_t rows_per_block) noexcept;

/// The same, but the last block of each slot comes in strips of `width` rows, so that slots end
/// together: 1.04 times as fast at 512 tokens of 12 heads on two threads, 1.01 at 2,048. Changes no
/// bits.
TaskGrid with_pieces(const AttentionParams& params, TaskGrid grid, std::int64_t width,
                     std::int32_t slots) noexcept;

std::int64_t count_tasks(const AttentionParams& params, const TaskGrid& grid) noexcept;

}  // namespace regard::cpu

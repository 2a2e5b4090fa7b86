#include "cpu/run_tasks.h"

#include <algorithm>
#include <atomic>

#include "base/checked.h"
#include "cpu/progress.h"
#include "cpu/slot_hook.h"

namespace regard::cpu {
namespace {

struct State {
  const TaskLoop* loop;
  char* scratch;
  std::int64_t slots;
  Interrupt* interrupt;  // null: nothing ends the loop before its time
  std::atomic<std::int64_t> next{0};
};

void run_slot(void* opaque, int slot) {
  State& state = *static_cast<State*>(opaque);
  const TaskLoop& loop = *state.loop;
  char* const scratch = state.scratch + slot * loop.scratch_bytes;
  for (;;) {
    const TaskRange range = take_tasks(&state.next, loop.tasks, state.slots);
    if (range.begin >= range.end) return;
    for (std::int64_t task = range.begin; task < range.end; ++task) {
      if (is_interrupted(state.interrupt)) return;
      loop.fn(loop.args, task, scratch);
    }
  }
}

/// Products of one slot: some 5 microseconds, what it takes to wake a thread.
constexpr std::int64_t kLeastProducts = 1 << 17;

}  // namespace

TaskRange take_tasks(std::atomic<std::int64_t>* next, std::int64_t tasks,
                     std::int64_t slots) noexcept {
  constexpr std::int64_t kMost = 16;
  call_slot_hook(SlotPoint::kTake);
  std::int64_t begin = next->load(std::memory_order_relaxed);
  std::int64_t count = 0;
  do {
    count = std::clamp<std::int64_t>((tasks - begin) / (4 * slots), 1, kMost);
  } while (!next->compare_exchange_weak(begin, begin + count, std::memory_order_relaxed));
  return {begin, std::min(begin + count, tasks)};
}

std::int64_t rows_per_head(const AttentionParams& params) noexcept {
  const std::int64_t group = params.num_heads_kv > 0 ? params.num_heads_q / params.num_heads_kv : 0;
  return saturating_mul(params.seqlen_q, group);
}

std::int32_t useful_slots(const AttentionParams& params, std::int32_t slots) noexcept {
  const std::int64_t pairs = saturating_mul(saturating_mul(params.batch, params.num_heads_q),
                                            saturating_mul(params.seqlen_q, params.seqlen_kv));
  const std::int64_t dims = saturating_add(params.head_dim_qk, params.head_dim_v);
  const std::int64_t worth = saturating_mul(pairs, dims) / kLeastProducts;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(worth, 1, slots));
}

void run_tasks(const TaskLoop& loop, std::int32_t slots, const Launch& launch) {
  if (loop.tasks <= 0) return;
  const auto used = static_cast<int>(std::min<std::int64_t>(slots, loop.tasks));
  Interrupt* const interrupt = loop.wait_for_each_other ? nullptr : launch.interrupt;
  State state{&loop, static_cast<char*>(launch.workspace.data), used, interrupt, {}};
  if (used == 1) {
    run_slot(&state, 0);
  } else {
    launch.executor->run(used, run_slot, &state);
  }
}

std::int32_t plan_slots(const Env& env, const AttentionParams& params,
                        std::int64_t tasks) noexcept {
  const std::int32_t most = useful_slots(params, std::max(env.concurrency, 1));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(tasks, 1, most));
}

std::int64_t count_tasks(const AttentionParams& params, std::int64_t rows_per_task) noexcept {
  const std::int64_t blocks = ceil_div(rows_per_head(params), rows_per_task);
  return saturating_mul(saturating_mul(params.batch, params.num_heads_kv), blocks);
}

std::int64_t choose_strips(const AttentionParams& params, std::int64_t width,
                           std::int64_t max_strips, std::int32_t slots) noexcept {
  std::int64_t strips = max_strips;
  while (strips > 1 && count_tasks(params, strips * width) < 4 * std::int64_t{slots}) strips /= 2;
  return strips;
}

TaskGrid make_grid(const AttentionParams& params, std::int64_t rows_per_block) noexcept {
  return {rows_per_block, ceil_div(rows_per_head(params), rows_per_block), 0, 1};
}

TaskGrid with_pieces(const AttentionParams& params, TaskGrid grid, std::int64_t width,
                     std::int32_t slots) noexcept {
  const std::int64_t strips = grid.rows_per_block / width;
  if (slots == 1 || strips == 1) return grid;
  grid.pieces = strips;
  grid.whole = std::max<std::int64_t>(count_tasks(params, grid.rows_per_block) - slots, 0);
  return grid;
}

std::int64_t count_tasks(const AttentionParams& params, const TaskGrid& grid) noexcept {
  const std::int64_t blocks = count_tasks(params, grid.rows_per_block);
  return saturating_add(grid.whole, saturating_mul(blocks - grid.whole, grid.pieces));
}

}  // namespace regard::cpu

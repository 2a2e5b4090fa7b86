#include "cpu/threads/run_tasks.h"

#include <algorithm>
#include <atomic>

#include "base/checked.h"
#include "cpu/threads/progress.h"
#include "cpu/threads/worker_hook.h"

namespace regard::cpu {
namespace {

struct State {
  const TaskLoop* loop;
  char* scratch;
  std::int64_t workers;
  Interrupt* interrupt;  // null: nothing ends the loop before its time
  std::atomic<std::int64_t> next{0};
};

/// Orders stores past the caches (V::stream) before those by which a caller hands on the outputs.
void fence_streams() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

void run_worker(void* opaque, int worker) {
  State& state = *static_cast<State*>(opaque);
  const TaskLoop& loop = *state.loop;
  char* const scratch = state.scratch + worker * loop.scratch_bytes;
  for (;;) {
    const TaskRange range = take_tasks(&state.next, loop.tasks, state.workers);
    if (range.begin >= range.end) return fence_streams();
    for (std::int64_t task = range.begin; task < range.end; ++task) {
      if (is_interrupted(state.interrupt)) return fence_streams();
      loop.fn(loop.args, task, scratch);
    }
  }
}

std::int64_t group_size(const AttentionParams& params) noexcept {
  return params.num_heads_kv > 0 ? params.num_heads_q / params.num_heads_kv : 0;
}

/// `blocks` in the longest sequence; packed ones have `total` rows together, and each has one block
/// at most that is not full.
TaskGrid grid_of_blocks(const AttentionParams& params, std::int64_t blocks,
                        std::int64_t rows_per_task, std::int64_t total) noexcept {
  TaskGrid grid;
  grid.rows_per_task = rows_per_task;
  grid.blocks = blocks;
  grid.all_blocks = saturating_mul(params.batch, blocks);
  if (params.features.has(Feature::kPacked)) {
    const std::int64_t max = saturating_add(total / rows_per_task, params.batch);
    grid.all_blocks = std::min(grid.all_blocks, max);
  }
  return grid;
}

/// Products of one worker: some 5 microseconds, what it takes to wake a thread.
constexpr std::int64_t kMinProducts = 1 << 17;

}  // namespace

TaskRange take_tasks(std::atomic<std::int64_t>* next, std::int64_t tasks,
                     std::int64_t workers) noexcept {
  constexpr std::int64_t kMax = 16;
  call_worker_hook(WorkerPoint::kTake);
  std::int64_t begin = next->load(std::memory_order_relaxed);
  std::int64_t count = 0;
  do {
    count = std::clamp<std::int64_t>((tasks - begin) / (4 * workers), 1, kMax);
  } while (!next->compare_exchange_weak(begin, begin + count, std::memory_order_relaxed));
  return {begin, std::min(begin + count, tasks)};
}

std::int64_t rows_per_head(const AttentionParams& params) noexcept {
  return saturating_mul(params.seqlen_q, group_size(params));
}

std::int32_t useful_workers(const AttentionParams& params, std::int32_t workers) noexcept {
  const bool packed = params.features.has(Feature::kPacked);
  const std::int64_t queries =
      packed ? params.total_q : saturating_mul(params.batch, params.seqlen_q);
  const std::int64_t pairs =
      saturating_mul(saturating_mul(queries, params.num_heads_q), params.seqlen_kv);
  const std::int64_t dims = saturating_add(params.head_dim_qk, params.head_dim_v);
  const std::int64_t worth = saturating_mul(pairs, dims) / kMinProducts;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(worth, 1, workers));
}

Launch behind(const Launch& launch, std::int64_t bytes) noexcept {
  Launch rest = launch;
  if (bytes == 0) return rest;  // there may be no workspace
  rest.workspace.data = static_cast<char*>(launch.workspace.data) + bytes;
  rest.workspace.bytes -= static_cast<std::size_t>(bytes);
  return rest;
}

void run_tasks(const TaskLoop& loop, std::int32_t workers, const Launch& launch) {
  if (loop.tasks <= 0) return;
  const auto used = static_cast<int>(std::min<std::int64_t>(workers, loop.tasks));
  Interrupt* const interrupt = loop.wait_for_each_other ? nullptr : launch.interrupt;
  State state{&loop, static_cast<char*>(launch.workspace.data), used, interrupt, {}};
  if (used == 1) {
    run_worker(&state, 0);
  } else {
    launch.executor->run(used, run_worker, &state);
  }
}

std::int32_t plan_workers(const Env& env, const AttentionParams& params,
                          std::int64_t tasks) noexcept {
  const std::int32_t max = useful_workers(params, std::max(env.concurrency, 1));
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(tasks, 1, max));
}

std::int64_t count_tasks(const AttentionParams& params, std::int64_t rows_per_task) noexcept {
  return saturating_mul(params.num_heads_kv, make_grid(params, rows_per_task).all_blocks);
}

std::int64_t choose_row_blocks(const AttentionParams& params, std::int64_t width,
                               std::int64_t max_row_blocks, std::int32_t workers) noexcept {
  std::int64_t row_blocks = max_row_blocks;
  while (row_blocks > 1 && count_tasks(params, row_blocks * width) < 4 * std::int64_t{workers})
    row_blocks /= 2;
  return row_blocks;
}

std::int64_t choose_block_rows(const AttentionParams& params, std::int64_t width,
                               std::int64_t lanes, std::int64_t max_row_blocks,
                               std::int32_t workers) noexcept {
  const std::int64_t row_blocks = choose_row_blocks(params, width, max_row_blocks, workers);
  if (row_blocks > 1 || workers == 1 || rows_per_head(params) <= lanes) return row_blocks * width;
  constexpr FeatureSet kUneven{Feature::kCausal, Feature::kWindowLeft, Feature::kWindowRight};
  const bool is_uneven = params.features.without(kUneven) != params.features;
  std::int64_t best = width, min = kInt64Max;
  for (std::int64_t vectors = max_row_blocks * width / lanes; vectors > 0; --vectors) {
    // Tenths of a vector's time: reading a tile takes three, a row block of one vector is slower.
    const std::int64_t time = 10 * vectors + (vectors == 1 ? 4 : 3);
    const std::int64_t tasks = count_tasks(params, vectors * lanes);
    if (tasks > 64 * std::int64_t{workers}) break;
    // The longest rows take twice the mean, and start first.
    const std::int64_t all = is_uneven ? std::max(2 * time, tasks * time / workers + time / 2)
                                       : ceil_div(tasks, workers) * time;
    if (all < min) {
      min = all;
      best = vectors * lanes;
    }
  }
  return best;
}

TaskGrid make_grid(const AttentionParams& params, std::int64_t rows_per_task) noexcept {
  const std::int64_t blocks = ceil_div(rows_per_head(params), rows_per_task);
  return grid_of_blocks(params, blocks, rows_per_task,
                        saturating_mul(params.total_q, group_size(params)));
}

TaskGrid make_key_grid(const AttentionParams& params, std::int64_t keys_per_task) noexcept {
  const std::int64_t blocks = ceil_div(params.seqlen_kv, keys_per_task);
  return grid_of_blocks(params, blocks, keys_per_task, params.total_kv);
}

TaskGrid with_sub_blocks(const AttentionParams& params, TaskGrid grid, std::int64_t width,
                         std::int32_t workers) noexcept {
  const std::int64_t row_blocks = grid.rows_per_task / width;
  if (workers == 1 || row_blocks <= 1 || grid.rows_per_task % width != 0) return grid;
  const bool in_pairs = row_blocks >= 4 && row_blocks % 2 == 0;
  const std::int64_t blocks = in_pairs ? workers + workers / 2 : workers;
  grid.sub_blocks = in_pairs ? row_blocks / 2 : row_blocks;
  const std::int64_t all = saturating_mul(params.num_heads_kv, grid.all_blocks);
  grid.whole = std::max<std::int64_t>(all - blocks, 0);
  return grid;
}

std::int64_t count_tasks(const AttentionParams& params, const TaskGrid& grid) noexcept {
  const std::int64_t blocks = saturating_mul(params.num_heads_kv, grid.all_blocks);
  return saturating_add(grid.whole, saturating_mul(blocks - grid.whole, grid.sub_blocks));
}

}  // namespace regard::cpu

#include "cpu/threads/packed_blocks.h"

#include <algorithm>

#include "base/checked.h"
#include "cpu/threads/run_tasks.h"

namespace regard::cpu {

std::int64_t packed_blocks_bytes(const AttentionParams& params) noexcept {
  if (!params.features.has(Feature::kPacked)) return 0;
  return round_up(saturating_mul(params.batch, 2 * sizeof(std::int64_t)), 64);
}

Launch behind_packed_blocks(const AttentionParams& params, const Launch& launch) noexcept {
  return behind(launch, packed_blocks_bytes(params));
}

void count_packed_blocks(const Problem& problem, const RowStarts& starts,
                         std::int64_t rows_per_position, const Launch& launch,
                         TaskGrid* grid) noexcept {
  if (starts.data == nullptr) return;
  auto* const order = static_cast<std::int64_t*>(launch.workspace.data);
  std::int64_t* const ends = order + problem.batch;
  for (std::int64_t b = 0; b < problem.batch; ++b) order[b] = b;
  const auto rows = [&](std::int64_t b) { return sequence_rows(starts, 0, b); };
  std::sort(order, ends, [&](std::int64_t a, std::int64_t b) {
    return rows(a) != rows(b) ? rows(a) > rows(b) : a < b;
  });
  std::int64_t blocks = 0;
  for (std::int64_t n = 0; n < problem.batch; ++n) {
    blocks += ceil_div(rows(order[n]) * rows_per_position, grid->rows_per_task);
    ends[n] = blocks;
  }
  grid->order = order;
  grid->block_ends = ends;
  grid->all_blocks = blocks;
}

}  // namespace regard::cpu

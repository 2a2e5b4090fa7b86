#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "regard/params.h"
#include "regard/request.h"

// Tasks over packed sequences. Their lengths are data: execute counts the blocks of each sequence
// in the workspace, so that a short sequence beside a long one has no empty tasks.

namespace regard::cpu {

/// Bytes at the start of a workspace for the counts; 0 where sequences are not packed.
std::int64_t packed_blocks_bytes(const AttentionParams& params) noexcept;

/// The launch with what is left of its workspace behind the counts.
Launch behind_packed_blocks(const AttentionParams& params, const Launch& launch) noexcept;

/// Counts blocks of grid.rows_per_task rows, of which each position (of q, or of k) has
/// `rows_per_position`; long sequences come first, so that workers end together. Does nothing
/// where sequences are not packed. Uses the start of the launch's workspace.
void count_packed_blocks(const Problem& problem, const RowStarts& starts,
                         std::int64_t rows_per_position, const Launch& launch,
                         TaskGrid* grid) noexcept;

}  // namespace regard::cpu

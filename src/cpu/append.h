#pragma once

#include <cstdint>

#include "problem/problem.h"
#include "regard/backend.h"
#include "regard/params.h"

// What a call does before its kernels run: new rows are written to a cache, quantised where it has
// scales, and rotary embedding turns them and the queries, or a Hadamard matrix mixes them.

namespace regard::cpu {

/// The launch with what is left of its workspace behind rotated, or mixed, queries.
Launch behind_rotated_queries(const AttentionParams& params, const Launch& launch) noexcept;

/// Bytes that append_and_rotate needs of each worker's scratch; 0 where it does nothing.
std::int64_t append_scratch_bytes(const AttentionParams& params) noexcept;

/// The workers of a call, each with append_scratch_bytes of scratch at least.
struct AppendWorkers {
  std::int32_t count;
  std::int64_t scratch_bytes;
  const Launch& launch;
};

/// Writes the rows of k_new and v_new behind those that each sequence has in K and V, before any of
/// them is read; with rotary embedding or a Hadamard matrix k_new is rotated and mixed as it is
/// written, and the problem's q becomes such a copy at `rotated_queries`. Does nothing without any.
void append_and_rotate(problem::Problem* problem, void* rotated_queries,
                       const AppendWorkers& workers);

/// Queries [begin, end) of a sequence, all heads.
struct QueryRange {
  std::int64_t b;
  std::int64_t begin;
  std::int64_t end;
};

/// Of a call that has ended: copies those queries to `copies`, rotated or mixed as the call had
/// them, which becomes the problem's q; no other query may be read from it. `row`: one in f64. Does
/// nothing without rotary embedding or a Hadamard matrix.
void rotate_queries(problem::Problem* problem, const QueryRange& queries, void* copies, void* row);

}  // namespace regard::cpu

#pragma once

#include <string>
#include <vector>

#include "distributed/attention.h"
#include "distributed/pairs.h"
#include "distributed/schedule.h"

// How an algorithm divides a problem: heads within groups of `inner` ranks, rows between the
// groups. p2p and all_gather have groups of one rank, a2a has one group.

namespace regard::distributed {

/// The problem of all ranks.
struct Whole {
  AttentionParams params;  // types, heads, head_dims, options
  Options options;
  AttentionOptions call;  // what every call's options are to be
  std::int64_t diagonal_offset = 0;
  int ranks = 1;
  bool has_alibi = false, has_sinks = false;
  Visibility visibility;
  std::vector<std::vector<Piece>> pieces_q, pieces_kv;  // of each rank

  bool is_packed() const noexcept { return !options.cu_seqlens_q.empty(); }
  /// Of each batch entry; 0 where it is not packed.
  std::int64_t documents() const noexcept {
    return is_packed() ? static_cast<std::int64_t>(options.cu_seqlens_q.size()) - 1 : 0;
  }
  Dtype accumulates() const noexcept {
    return params.dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  }
  /// Of a backward: out's, unless q has 8-bit floats.
  Dtype dtype_d_out() const noexcept {
    return is_f8(params.dtype_q) ? params.dtype_d_out : params.dtype_out;
  }
};

/// What one rank of a group has of the heads.
struct HeadShare {
  std::int64_t q_begin = 0, q_count = 0;
  std::int64_t kv_begin = 0, kv_count = 0;
  std::vector<HeadRun> runs;
};

struct Arrangement {
  int inner = 1;  // ranks of a group
  bool gathers = false;
  std::vector<HeadShare> heads;                     // of each rank of a group
  std::vector<std::vector<Piece>> node_q, node_kv;  // of each group
  Sharding sharding;                                // of the groups
  int nodes() const noexcept { return sharding.members(); }
};

/// Documents, windows and pieces.
Status complete(Whole* whole, const char* where);
/// Empty, or why it cannot be.
std::string refusal(const Whole& whole, Algorithm algorithm);
Arrangement arrange(const Whole& whole, Algorithm algorithm);
Estimate estimate(const Whole& whole, Algorithm algorithm, const Arrangement& arrangement);
/// Of partial results that go to every rank.
Estimate estimate_decode(const Whole& whole);

/// The row of a node's tensors that a piece of the whole begins at.
std::int64_t node_row(const std::vector<Piece>& node, const Piece& piece) noexcept;

}  // namespace regard::distributed

#pragma once

#include <cstdint>
#include <vector>

#include "distributed/rows.h"
#include "distributed/schedule.h"
#include "regard/context.h"

// One pair of pieces is one call of regard::attention, whose diagonal says where both lie.

namespace regard::distributed {

/// Query heads that share key heads as a call's do, counted in a member's tensors.
struct HeadRun {
  std::int64_t q_begin = 0, q_count = 0;
  std::int64_t kv_begin = 0, kv_count = 0;
  std::int64_t head = 0;  // of q_begin, in the whole problem
};

struct PairCall {
  Execution execution;
  const AttentionRequest& request;  // its options and scalars; slopes of all heads
  const Visibility& visibility;
  std::vector<HeadRun> runs;
  std::int64_t heads = 1;      // query heads of the whole problem
  std::int64_t documents = 0;  // of each batch entry; 0: it is not packed
  Dtype accumulates = Dtype::kF32;
};

/// Keys that a member holds now. d_k and d_v: what it adds to their gradients.
struct HeldKeys {
  Segment segment;  // `local` is not read
  TensorView k, v, d_k, d_v;
};

/// Adds keys to the partial results of a member's queries. The views are q's rows and results.
struct QueryPart {
  Segment segment;
  TensorView q, out, lse;        // out and lse: accumulated, -inf at first
  TensorView d_out, delta, d_q;  // of a backward; lse is that of all keys then
  bool is_empty = true;          // nothing was added yet
};
Status add_forward(const PairCall& call, const HeldKeys& keys, QueryPart* part);
Status add_backward(const PairCall& call, const HeldKeys& keys, const QueryPart& part);

/// `expression` of a part's indices, such that it means those of the whole.
struct IndexOrigin {
  std::int64_t b = 0, h = 0, q = 0, kv = 0, q_len = 0, kv_len = 0;
  std::int64_t documents = 1;  // of each batch entry: the part's b counts entries
};
Expected<Expression> move_indices(const Expression& expression, const IndexOrigin& origin);

}  // namespace regard::distributed

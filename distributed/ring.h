#pragma once

#include <vector>

#include "distributed/communicator.h"
#include "distributed/pairs.h"

// Keys travel between the members of a Sharding: around a ring, or to all that need them at once.

namespace regard::distributed {

struct Ring {
  PairCall call;
  const Sharding& sharding;
  std::vector<int> ranks;  // of the members
  int member = 0;          // this one
  bool gathers = false;    // all keys first
  TensorView q, k, v;      // this member's; k and v may be of another type than is computed with
};

/// out and lse: dense, of the accumulated type; rows that see nothing get 0 and -inf.
Status forward(const Ring& ring, Messages* messages, const TensorView& out, const TensorView& lse);

/// q and d_out are of the accumulated type; gradients are added to.
struct RingGradients {
  TensorView d_out, lse, delta;
  TensorView d_q, d_k, d_v;
};
Status backward(const Ring& ring, Messages* messages, const RingGradients& gradients);

/// What one member sends. `row`: bytes of a key and its value; `gradient`: of their gradients.
struct RingRow {
  std::int64_t row = 0, gradient = 0;
};
Traffic forward_traffic(const Sharding& sharding, int member, bool gathers, const RingRow& bytes,
                        const MessageLimits& limits);
Traffic backward_traffic(const Sharding& sharding, int member, bool gathers, const RingRow& bytes,
                         const MessageLimits& limits);

}  // namespace regard::distributed

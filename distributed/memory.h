#pragma once

#include <cstdint>

#include "distributed/arrangement.h"

namespace regard::distributed {

/// The most bytes of buffers that a call of the plan holds at once on `rank`, forward or backward:
/// messages, partial results and copies, as run.cc and ring.cc make them. Without copies of keys
/// that dropout's alignment needs, and without workspace.
std::int64_t memory_of(const Whole& whole, const Arrangement& arrangement, int rank);

}  // namespace regard::distributed

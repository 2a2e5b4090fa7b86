#pragma once

#include <span>

#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// Who merges where the launch has no executor, and how many workers at most.
struct MergeWorkers {
  Executor& executor;
  int count;
};

/// merge_states() without a Context; allocates only to report an error.
Status merge_partials(const MergeWorkers& workers, std::span<const StateView> states,
                      const TensorView& out, const TensorView& lse, const Launch& launch);

}  // namespace regard

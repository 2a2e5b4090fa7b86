#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "distributed/arrangement.h"

namespace regard::distributed {

struct PlanImpl {
  Whole whole;
  Arrangement arrangement;  // of the chosen algorithm
  std::vector<Estimate> estimates;
  std::size_t chosen = 0;
  bool is_decode = false;

  static Plan wrap(std::shared_ptr<const PlanImpl> impl) {
    Plan plan;
    plan.impl_ = std::move(impl);
    return plan;
  }
  static const PlanImpl* of(const Plan& plan) { return plan.impl_.get(); }
};

/// What ranks cannot compute together, by name: of a plan's request, and of each call's.
Status check_tensors(const AttentionRequest& request, const char* where);

/// Null or one number of f32.
Status check_descale(const char* name, const TensorView& view, const char* where);

/// A call's tensors must be those of the plan.
Status check_call(const PlanImpl& plan, const AttentionRequest& request, const Communicator& c,
                  const char* where);

struct Sinks {
  TensorView view;  // of all heads; absent: none
  std::int64_t first_head = 0;
};
/// merge_states, in which sinks join once, as a result without keys.
Status join_states(const Execution& execution, std::vector<StateView> states, const Sinks& sinks,
                   const TensorView& out, const TensorView& lse);

}  // namespace regard::distributed

#pragma once

#include "core/plan/context_impl.h"
#include "regard/request.h"

namespace regard {

/// Of a forward that has ended: counts it, and where its turn has come recomputes some of its rows
/// and compares them. A violation is reported; where the policy denies the backend the Status is
/// kRefusedAtPlan, and the call's outputs are no result.
Status self_check(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers);

/// kRefusedAtPlan where a self-check has denied the plan's backend.
Status check_not_denied(const PlanImpl& plan, const char* where);

}  // namespace regard

#pragma once

#include <memory>

#include "core/select/select.h"

// Predicted times of candidates, and what they say of the choice. They decide between those that
// fit max_workspace_bytes, and nothing else.

namespace regard {

/// The tuning table's model where the table holds for the machine and has one, else
/// default_costs().
CostModel cost_model(const TuningTable& tuning, const Env& env, DeviceType device);

/// Where the same bits are required of every number of threads, what was measured with one number
/// does not decide.
bool allows_tuning(const Policy& policy) noexcept;

/// What ways to compute padded and packed sequences are compared with: `model`, the cost_model() of
/// CPUs, or, without allows_tuning(), default rates of the instruction set and one thread.
std::shared_ptr<const CostModel> path_costs(std::shared_ptr<const CostModel> model, const Isa& isa,
                                            const Policy& policy);

/// In every direction that the params need; -1: unknown.
double predicted_seconds(const CostModel& model, const BackendRef& backend,
                         const AttentionParams& params) noexcept;

/// Fills the times of usable candidates by the cost_model(), cost_source and runner_up of a
/// Selection that is complete otherwise.
void add_predictions(const CostModel& model, Selection& selection);

/// "flash, which needs 438.0 KiB of workspace and is predicted to take 1.20 ms, 0.71 times as
/// long": what max_workspace_bytes excluded that would have been chosen; "" where it changed
/// nothing.
std::string given_up(const Selection& selection);

}  // namespace regard

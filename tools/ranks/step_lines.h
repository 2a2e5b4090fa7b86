#pragma once

#include <vector>

#include "distributed/communicator.h"

namespace regard::ranks {

/// One step of a call on one rank, as all ranks receive it.
struct StepLine {
  char step[24];
  double begin, computing, waiting;  // seconds
};

/// The activities of a call, those of one step joined.
std::vector<StepLine> steps_of(const distributed::CallRecord& record);

/// Prints each rank's steps and, of the whole call, the share of waiting.
void print_steps(const std::vector<std::vector<StepLine>>& ranks);

/// Exchanges the steps: those of every rank, by rank. `counts`: their numbers, known to all.
Expected<std::vector<std::vector<StepLine>>> exchange_steps(
    distributed::Communicator& communicator, const distributed::MessageLimits& limits,
    const std::vector<StepLine>& own, const std::vector<std::int64_t>& counts);

}  // namespace regard::ranks

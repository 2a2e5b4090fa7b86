#pragma once

#include <functional>
#include <string>

#include "distributed/communicator.h"

namespace llm {

/// How a rank ended.
struct RankOutcome {
  int code = 0;              // the program's exit code
  bool ends_others = false;  // other ranks may be waiting for this one
};

/// Runs `body` on this rank of mpirun, between MPI's first and last call, and returns its exit
/// code. A rank that ends the others has mpirun end the job. Without MPI it refuses.
int run_on_ranks(const std::function<RankOutcome(regard::distributed::Communicator&)>& body);
/// Rank 0 states the message; every rank returns the exit code.
int refuse_on_ranks(const std::string& message);

}  // namespace llm

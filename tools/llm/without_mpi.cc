#include "tools/llm/mpi_ranks.h"
#include "tools/llm/terminal.h"

namespace llm {

int run_on_ranks(const std::function<RankOutcome(regard::distributed::Communicator&)>&) {
  complain(
      "regard-llm: mpirun needs MPI, which this build does not have: build it with "
      "REGARD_MPI=ON\n");
  return kUsage;
}

}  // namespace llm

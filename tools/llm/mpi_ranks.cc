#include "tools/llm/mpi_ranks.h"

#include <mpi.h>

#include <cstdio>

#include "distributed/mpi/mpi_communicator.h"
#include "tools/llm/terminal.h"

namespace llm {

int run_on_ranks(const std::function<RankOutcome(regard::distributed::Communicator&)>& body) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  RankOutcome outcome{kFailed, true};
  {
    auto made = regard::distributed::make_mpi_communicator();
    if (made) {
      outcome = body(**made);
    } else {
      complain("regard-llm: " + made.status().message() + "\n");
    }
  }
  std::fflush(stdout);
  if (outcome.ends_others) MPI_Abort(MPI_COMM_WORLD, outcome.code);
  MPI_Finalize();
  return outcome.code;
}

}  // namespace llm

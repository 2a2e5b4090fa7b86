#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace regard::distributed {

/// Messages by MPI. MPI_Init_thread was called before with MPI_THREAD_FUNNELED at least, and one
/// thread uses the communicator. It ends before MPI_Finalize. Where MPI_THREAD_MULTIPLE was
/// provided, a thread of the communicator advances messages while the rank computes; without it
/// long messages may move only once the rank waits for them.
///
/// `comm`: null for MPI_COMM_WORLD, or the address of an MPI_Comm, which is duplicated. Errors of
/// MPI are Statuses. Where a rank dies, mpirun ends the job; one that hangs is an error after the
/// time-out. MPI transfers copies of messages: abandon() cancels what is under way, and a copy that
/// MPI does not let go stays until the process ends, so that callers may use their memory again.
Expected<std::unique_ptr<Communicator>> make_mpi_communicator(const void* comm = nullptr);

}  // namespace regard::distributed

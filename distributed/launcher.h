#pragma once

namespace regard::distributed {

/// The number of ranks that mpirun (Open MPI, or one that speaks PMI) started this process among,
/// or 0 where it did not.
int ranks_of_launcher() noexcept;

}  // namespace regard::distributed

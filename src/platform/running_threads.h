#pragma once

namespace regard {

/// Threads of this process, besides the calling one, that run or wait for a processor; 0 where the
/// system does not tell.
int count_running_threads();

}  // namespace regard

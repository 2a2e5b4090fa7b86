#pragma once

namespace regard::cpu {

/// The CPU of the calling thread; -1 where the system does not say.
int current_cpu() noexcept;

/// Moves the calling thread to another CPU if it is on `cpu` and may run on `threads` CPUs or more;
/// afterwards it may run wherever it might before.
void leave_cpu(int cpu, int threads) noexcept;

}  // namespace regard::cpu

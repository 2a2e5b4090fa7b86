#include "cpu/threads/leave_cpu.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace regard::cpu {

#if defined(__linux__)

int current_cpu() noexcept { return sched_getcpu(); }

void leave_cpu(int cpu, int threads) noexcept {
  if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getcpu() != cpu) return;
  cpu_set_t usual;
  if (sched_getaffinity(0, sizeof(usual), &usual) != 0 || CPU_COUNT(&usual) < threads) return;
  cpu_set_t others = usual;
  CPU_CLR(static_cast<unsigned>(cpu), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(usual), &usual);
}

#else

int current_cpu() noexcept { return -1; }
void leave_cpu(int, int) noexcept {}

#endif

}  // namespace regard::cpu

#include <gtest/gtest.h>

#if defined(__linux__)

#include <sched.h>

#include "cpu/threads/leave_cpu.h"

namespace regard::cpu {
namespace {

cpu_set_t own_mask() {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  return mask;
}

TEST(LeaveCpu, MovesTheThreadAndRestoresItsMask) {
  const cpu_set_t before = own_mask();
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one CPU";
  int left = 0;
  for (int i = 0; i < 20; ++i) {
    const int cpu = current_cpu();
    leave_cpu(cpu, 2);
    left += current_cpu() != cpu ? 1 : 0;  // the system may move it back at any time
  }
  EXPECT_GT(left, 10);
  const cpu_set_t after = own_mask();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

TEST(LeaveCpu, StaysWhereNoOtherIsAllowed) {
  const cpu_set_t before = own_mask();
  cpu_set_t one;
  CPU_ZERO(&one);
  const int cpu = current_cpu();
  CPU_SET(static_cast<unsigned>(cpu), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  leave_cpu(cpu, 1);
  EXPECT_EQ(current_cpu(), cpu);
  const cpu_set_t after = own_mask();
  EXPECT_TRUE(CPU_EQUAL(&after, &one));
  EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace regard::cpu

#endif

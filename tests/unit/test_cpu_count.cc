#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "platform/cpu_count.h"
#include "tests/support/temp_folder.h"

// How many CPUs a process may use: quotas of cgroups, and masks of any size.

namespace regard {
namespace {

/// A tree of cgroups, and a process's cgroup file.
class Cgroups : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  std::int32_t cpus(const std::string& membership) {
    write("self", membership);
    return cgroup_cpus(root_.string(), (root_ / "self").string());
  }

  const test::TempFolder folder_;
  const std::filesystem::path& root_ = folder_.path();
};

TEST(CpuCount, AQuotaIsRoundedUp) {
  EXPECT_EQ(quota_cpus(100000, 100000), 1);
  EXPECT_EQ(quota_cpus(100001, 100000), 2);
  EXPECT_EQ(quota_cpus(50000, 100000), 1);
  EXPECT_EQ(quota_cpus(-1, 100000), 0);  // v1 without a limit
  EXPECT_EQ(quota_cpus(0, 100000), 0);
  EXPECT_EQ(quota_cpus(100000, 0), 0);
  EXPECT_EQ(quota_cpus(INT64_MAX, 1), INT32_MAX);
}

TEST(CpuCount, CpuMax) {
  EXPECT_EQ(parse_cpu_max("150000 100000"), 2);
  EXPECT_EQ(parse_cpu_max("6400000 100000\n"), 64);
  for (const char* text : {"", "max 100000", "150000", "150000 ", "150000 max", "150000\t100000",
                           "-1 100000", "99999999999999999999 1"}) {
    EXPECT_EQ(parse_cpu_max(text), 0) << text;
  }
}

TEST_F(Cgroups, Version2TakesTheSmallestOfItsOwnAndThoseAbove) {
  write("cpu.max", "max 100000");
  write("a/cpu.max", "250000 100000");
  write("a/b/cpu.max", "700000 100000");
  EXPECT_EQ(cpus("0::/a/b"), 3);
  EXPECT_EQ(cpus("0::/a"), 3);
  EXPECT_EQ(cpus("0::/"), 0);
}

TEST_F(Cgroups, Version2OfAContainerIsTheMountItself) {
  write("cpu.max", "150000 100000");
  EXPECT_EQ(cpus("0::/"), 2);
  EXPECT_EQ(cpus("0::/host/path/of/the/container"), 2);
  EXPECT_EQ(cpus("0::/../outside"), 2);
}

TEST_F(Cgroups, Version1) {
  write("cpu,cpuacct/a/cpu.cfs_quota_us", "350000");
  write("cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  write("cpu,cpuacct/cpu.cfs_quota_us", "-1");
  write("cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpus("5:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/a"), 4);
  EXPECT_EQ(cpus("4:cpu,cpuacct:/"), 0);
  EXPECT_EQ(cpus("4:cpuset,cpuacct:/a"), 0);
  write("cpu/a/cpu.cfs_quota_us", "150000");
  write("cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpus("4:cpu:/a"), 2);
}

TEST_F(Cgroups, WhatCannotBeReadLimitsNothing) {
  EXPECT_EQ(cgroup_cpus(root_.string(), (root_ / "absent").string()), 0);
  for (const char* text : {"", "0", "0:", "::", "a:b:c", "4:cpu:/a"}) EXPECT_EQ(cpus(text), 0);
}

TEST(CpuCount, AMaskMayHoldMoreThan1024Cpus) {
  const auto read = [](unsigned char* mask, std::size_t bytes) {
    constexpr std::size_t kCpus = 4096;  // as sched_getaffinity on such a machine
    if (bytes * 8 < kCpus) return false;
    std::fill_n(mask, kCpus / 8, static_cast<unsigned char>(0xff));
    return true;
  };
  EXPECT_EQ(affinity_cpus(read), 4096);
  EXPECT_EQ(affinity_cpus([](unsigned char*, std::size_t) { return false; }), 0);
}

TEST(CpuCount, OfThisProcessIsPlausible) {
  EXPECT_GE(count_cpus(), 1);
  EXPECT_LE(count_cpus(), 65536);
}

}  // namespace
}  // namespace regard

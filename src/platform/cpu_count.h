#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// How many CPUs a process may use.

namespace regard {

/// The CPUs of the affinity mask, at most those of the cgroups' quotas; at least 1.
std::int32_t count_cpus();

/// CPUs of a quota of microseconds in each period, rounded up; 0 without a limit.
std::int32_t quota_cpus(std::int64_t quota_us, std::int64_t period_us) noexcept;

/// The same from cgroup v2's cpu.max, "150000 100000" or "max 100000"; 0 for any other text.
std::int32_t parse_cpu_max(std::string_view text) noexcept;

/// The smallest quota of the process's cgroup and of those above it, v1 or v2; 0 without a limit.
/// `root` is where cgroups are mounted (/sys/fs/cgroup), `membership` the process's cgroup file
/// (/proc/self/cgroup). What cannot be read limits nothing.
std::int32_t cgroup_cpus(const std::string& root, const std::string& membership);

/// Reads an affinity mask into `bytes` bytes, as sched_getaffinity does: false when they are too
/// few for the system's CPUs.
using ReadAffinity = bool (*)(unsigned char* mask, std::size_t bytes);

/// CPUs in the mask, however many the system has; 0 when it cannot be read.
std::int32_t affinity_cpus(ReadAffinity read);

}  // namespace regard

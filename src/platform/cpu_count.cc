#include "platform/cpu_count.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <thread>
#include <vector>

#include "platform/read_file.h"

namespace regard {
namespace {

/// Takes a number off the front of `text`; false when there is none.
bool take_number(std::string_view* text, std::int64_t* value) noexcept {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return true;
}

/// The first line of a file, "" when there is none.
std::string first_line(const std::string& path) {
  const std::string text = read_system_file(path);
  return text.substr(0, text.find('\n'));
}

std::int64_t read_number(const std::string& path) {
  const std::string line = first_line(path);
  std::string_view text = line;
  std::int64_t value = 0;
  return take_number(&text, &value) ? value : 0;
}

std::int32_t v2_cpus(const std::string& folder) {
  return parse_cpu_max(first_line(folder + "/cpu.max"));
}

std::int32_t v1_cpus(const std::string& folder) {
  return quota_cpus(read_number(folder + "/cpu.cfs_quota_us"),
                    read_number(folder + "/cpu.cfs_period_us"));
}

/// The smaller of two limits, of which 0 is none.
std::int32_t smaller_limit(std::int32_t a, std::int32_t b) noexcept {
  return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

/// The smallest quota of mount/path and the folders above it, as far as the mount. In a container
/// the path may be the host's, of which the mount shows the last folder alone.
std::int32_t smallest_quota(const std::string& mount, std::string path,
                            std::int32_t (*cpus_of)(const std::string&)) {
  if (path.find("..") != std::string::npos) path.clear();
  std::int32_t cpus = 0;
  for (;;) {
    cpus = smaller_limit(cpus, cpus_of(mount + path));
    if (path.empty()) return cpus;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

/// Whether "cpu" is among "cpu,cpuacct".
bool names_cpu(std::string_view controllers) noexcept {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

#if defined(__linux__)
bool read_own_affinity(unsigned char* mask, std::size_t bytes) {
  return sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(mask)) == 0;
}
#endif

}  // namespace

std::int32_t quota_cpus(std::int64_t quota_us, std::int64_t period_us) noexcept {
  if (quota_us <= 0 || period_us <= 0) return 0;
  const std::int64_t cpus = quota_us / period_us + (quota_us % period_us > 0 ? 1 : 0);
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(cpus, std::numeric_limits<std::int32_t>::max()));
}

std::int32_t parse_cpu_max(std::string_view text) noexcept {
  std::int64_t quota = 0, period = 0;
  if (!take_number(&text, &quota) || text.empty() || text.front() != ' ') return 0;
  text.remove_prefix(1);
  return take_number(&text, &period) ? quota_cpus(quota, period) : 0;
}

std::int32_t cgroup_cpus(const std::string& root, const std::string& membership) {
  // A line a hierarchy, "ID:CONTROLLERS:PATH": "0::/a/b" is v2's, "4:cpu,cpuacct:/a/b" one of v1's.
  const std::string lines = read_system_file(membership);
  std::int32_t cpus = 0;
  for (std::size_t begin = 0, end = 0; begin < lines.size(); begin = end + 1) {
    end = std::min(lines.find('\n', begin), lines.size());
    const std::string line = lines.substr(begin, end - begin);
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      cpus = smaller_limit(cpus, smallest_quota(root, path, v2_cpus));
    } else if (names_cpu(controllers)) {
      cpus = smaller_limit(cpus, smallest_quota(root + "/" + controllers, path, v1_cpus));
      cpus = smaller_limit(cpus, smallest_quota(root + "/cpu", path, v1_cpus));
    }
  }
  return cpus;
}

std::int32_t affinity_cpus(ReadAffinity read) {
  // The system refuses a mask that is too small for its CPUs; cpu_set_t holds 1,024 of them.
  constexpr std::size_t kMinBytes = 128, kMaxBytes = 1 << 20;
  for (std::size_t bytes = kMinBytes; bytes <= kMaxBytes; bytes *= 2) {
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
    if (!read(reinterpret_cast<unsigned char*>(mask.data()), bytes)) continue;
    std::int32_t cpus = 0;
    for (const unsigned long word : mask) cpus += std::popcount(word);
    return cpus;
  }
  return 0;
}

std::int32_t count_cpus() {
  std::int32_t cpus = 0;
#if defined(__linux__)
  cpus = affinity_cpus(read_own_affinity);
#endif
  if (cpus == 0) cpus = static_cast<std::int32_t>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpus = smaller_limit(cpus, cgroup_cpus("/sys/fs/cgroup", "/proc/self/cgroup"));
#endif
  return std::max(cpus, 1);
}

}  // namespace regard

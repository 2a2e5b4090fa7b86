#include "tools/files/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace regard::files {
namespace {

int milliseconds_until(LineReader::Clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - LineReader::Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

}  // namespace

LineReader::Event LineReader::next(Clock::time_point deadline, std::string* line) {
  for (;;) {
    if (const auto end = rest_.find('\n'); end != std::string::npos) {
      *line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      return Event::kLine;
    }
    pollfd ready{file_, POLLIN, 0};
    const int polled = poll(&ready, 1, milliseconds_until(deadline));
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0) {
      if (Clock::now() < deadline) continue;
      return Event::kTimeout;
    }
    char buffer[4096];
    const ssize_t count = read(file_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || rest_.size() > kMaxLine) return Event::kEnd;
    rest_.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace regard::files

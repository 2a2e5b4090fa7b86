#pragma once

#include <chrono>
#include <string>

namespace regard::files {

/// Reads lines from a pipe that another process writes to. The descriptor stays its owner's.
class LineReader {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;  // bytes; a longer one is an end

  explicit LineReader(int file = -1) : file_(file) {}

  enum class Event { kLine, kEnd, kTimeout };
  /// The next line without its end; kEnd once the other side is closed.
  Event next(Clock::time_point deadline, std::string* line);

 private:
  int file_;
  std::string rest_;  // read and not yet returned
};

}  // namespace regard::files

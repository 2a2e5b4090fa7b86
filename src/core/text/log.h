#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "regard/context.h"

namespace regard {

/// The lines of a Context's log, each one JSON object.
class Log {
 public:
  /// `level` is REGARD_LOG's value.
  explicit Log(std::string_view level);

  bool wants(LogLevel level) const noexcept {
    return level <= level_.load(std::memory_order_relaxed);
  }
  void set_level(LogLevel level) noexcept { level_.store(level, std::memory_order_relaxed); }
  void set_sink(LogSink sink, void* user);

  void write(LogLevel level, std::string_view line);
  void write_warning(std::string_view message);
  /// Writes the decision unless the same one was written before.
  void write_selection(const Selection& selection);
  /// A line for each; nothing from the second call on.
  void write_warnings_once(const std::vector<std::string>& warnings);

 private:
  std::atomic<LogLevel> level_;
  std::atomic<bool> warned_{false};
  std::mutex mutex_;
  LogSink sink_ = nullptr;
  void* user_ = nullptr;
  std::unordered_set<std::string> written_;
};

}  // namespace regard

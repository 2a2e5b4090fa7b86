#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "regard/context.h"

namespace regard {

/// The log sink: REGARD_LOG=select writes a JSON line per distinct decision, profile one per call.
class Log {
 public:
  explicit Log(const std::string& words)
      : select_(words.find("select") != std::string::npos),
        profile_(words.find("profile") != std::string::npos) {}

  bool wants_select() const noexcept { return select_; }
  bool wants_profile() const noexcept { return profile_; }
  void set_sink(LogSink sink, void* user);

  /// Writes the decision unless the same one was written before.
  void write_selection(const Selection& selection);
  void write_profile(const AttentionParams& params, const BackendRef& backend, std::int64_t ns);
  /// A line for each; nothing from the second call on.
  void write_warnings_once(const std::vector<std::string>& warnings);

 private:
  void write(std::string_view line);

  const bool select_;
  const bool profile_;
  std::atomic<bool> warned_{false};
  std::mutex mutex_;
  LogSink sink_ = nullptr;
  void* user_ = nullptr;
  std::unordered_set<std::string> written_;
};

}  // namespace regard

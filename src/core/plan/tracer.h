#pragma once

#include <atomic>
#include <shared_mutex>
#include <string_view>

#include "core/text/log.h"
#include "regard/trace.h"

namespace regard {

/// Where the calls of a Context are reported: its trace function and its log. Plans share it, for
/// one may be executed after its Context has ended.
class Tracer {
 public:
  explicit Tracer(std::string_view log_level);

  Log& log() noexcept { return log_; }
  /// Whether report() has anything to do: one relaxed load.
  bool is_active() const noexcept { return active_.load(std::memory_order_relaxed); }

  /// Returns once no thread is in the former function.
  void set_function(TraceFunction function, void* user);
  void set_log_level(LogLevel level);
  /// Of a Context that ends: nothing is reported from here on.
  void close();

  /// Hands the call to the function, and writes its line. Throws nothing.
  void report(const CallTrace& call) noexcept;

 private:
  void update_active();

  Log log_;
  std::atomic<bool> active_{false};
  std::shared_mutex mutex_;  // shared by reports
  TraceFunction function_ = nullptr;
  void* user_ = nullptr;
  bool closed_ = false;
};

}  // namespace regard

#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "core/plan/recorder.h"
#include "core/text/log.h"
#include "regard/trace.h"

namespace regard {

/// Where the calls of a Context are reported: its trace function, its log and its record. Plans
/// share it, for one may be executed after its Context has ended.
class Tracer {
 public:
  explicit Tracer(std::string_view log_level);

  Log& log() noexcept { return log_; }
  /// Whether report() has anything to do: one relaxed load.
  bool is_active() const noexcept { return active_.load(std::memory_order_relaxed); }

  /// Returns once no thread is in the former function.
  void set_function(TraceFunction function, void* user);
  void set_log_level(LogLevel level);
  /// Where the calls are counted (regard/record.h); "" ends it.
  Status set_record(const std::string& path);
  /// Of a Context that ends: nothing is reported from here on.
  void close();

  /// Writes a warning, unless the Context has ended. Throws nothing.
  void warn(std::string_view message) noexcept;
  /// Hands the call to the function, and writes its line. Throws nothing.
  void report(const CallTrace& call) noexcept;

 private:
  void update_active();
  void record(const CallTrace& call);

  Log log_;
  std::atomic<bool> active_{false};
  std::shared_mutex mutex_;  // shared by reports
  TraceFunction function_ = nullptr;
  void* user_ = nullptr;
  std::unique_ptr<Recorder> recorder_;
  std::atomic<bool> record_failed_{false};  // and a warning was written
  bool closed_ = false;
};

}  // namespace regard

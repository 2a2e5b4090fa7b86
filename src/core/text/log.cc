#include "core/text/log.h"

#include <cstdio>

#include "base/json_writer.h"

namespace regard {
namespace {

void write_to_stderr(void*, LogLevel, std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

// Decisions remembered so as to write each once; past this many the memory starts afresh.
constexpr std::size_t kMaxRemembered = 4096;

LogLevel level_of(std::string_view word) {
  for (const LogLevel level : {LogLevel::kSelect, LogLevel::kTrace}) {
    if (word == to_string(level)) return level;
  }
  return LogLevel::kWarning;  // unset, or a word that every plan reports
}

}  // namespace

const char* to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kWarning: return "warning";
    case LogLevel::kSelect: return "select";
    case LogLevel::kTrace: return "trace";
  }
  return "?";
}

Log::Log(std::string_view level) : level_(level_of(level)) {}

void Log::set_sink(LogSink sink, void* user) {
  const std::lock_guard lock(mutex_);
  sink_ = sink;
  user_ = user;
}

void Log::write(LogLevel level, std::string_view line) {
  const std::lock_guard lock(mutex_);
  (sink_ != nullptr ? sink_ : write_to_stderr)(user_, level, line);
}

void Log::write_warning(std::string_view message) {
  JsonWriter w;
  w.begin_object().key("event").value("warning").key("message").value(message).end_object();
  write(LogLevel::kWarning, w.str());
}

void Log::write_selection(const Selection& selection) {
  JsonWriter w;
  w.begin_object().key("event").value("select");
  w.key("selection").raw(to_json(selection)).end_object();
  {
    const std::lock_guard lock(mutex_);
    if (written_.size() >= kMaxRemembered) written_.clear();
    if (!written_.insert(w.str()).second) return;
  }
  write(LogLevel::kSelect, w.str());
}

void Log::write_warnings_once(const std::vector<std::string>& warnings) {
  if (warnings.empty() || warned_.exchange(true)) return;
  for (const std::string& warning : warnings) write_warning(warning);
}

}  // namespace regard

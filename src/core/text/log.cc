#include "core/text/log.h"

#include <cstdio>
#include <new>

#include "base/json_writer.h"

namespace regard {
namespace {

void write_to_stderr(void*, std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

// Decisions remembered so as to write each once; past this many the memory starts afresh.
constexpr std::size_t kMaxRemembered = 4096;

}  // namespace

void Log::set_sink(LogSink sink, void* user) {
  const std::lock_guard lock(mutex_);
  sink_ = sink;
  user_ = user;
}

void Log::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  (sink_ != nullptr ? sink_ : write_to_stderr)(user_, line);
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
  write(w.str());
}

void Log::write_warnings_once(const std::vector<std::string>& warnings) {
  if (warnings.empty() || warned_.exchange(true)) return;
  for (const std::string& warning : warnings) {
    JsonWriter w;
    w.begin_object().key("event").value("warning").key("message").value(warning).end_object();
    write(w.str());
  }
}

void Log::write_profile(const AttentionParams& params, const BackendRef& backend,
                        std::int64_t ns) try {
  JsonWriter w;
  w.begin_object().key("event").value("profile");
  w.key("case").value(to_string(params));
  w.key("backend").value(to_string(backend));
  w.key("ns").value(ns).end_object();
  write(w.str());
} catch (const std::bad_alloc&) {
  // The call has succeeded: its line is lost, not its result.
}

}  // namespace regard

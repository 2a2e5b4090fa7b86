#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "regard/context.h"
#include "trace_recorder.h"

namespace regard::python {

/// What surrounds a call of the library, with the GIL: the log follows Python's logger, an open
/// regard.trace receives the layer that calls, and afterwards the log's lines are handed over.
class CallScope {
 public:
  /// `layer`: of a backward, its forward's; else it is found on Python's stack where a trace is
  /// open.
  explicit CallScope(Context& context, const std::string* layer = nullptr);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// "" where it is unknown, or no trace is open.
  const std::string& layer() const noexcept { return layer_; }

 private:
  std::string layer_;
  std::optional<LayerScope> scope_;
};

/// What regard.last_selection() returns on this thread from here on. A call that failed before it
/// was described changes nothing.
void remember_call(PlannedCall planned, const Status& status, std::vector<std::string> notes);

/// The Selection of the last call of this thread; None before any.
nanobind::object last_selection();

}  // namespace regard::python

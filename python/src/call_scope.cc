#include "call_scope.h"

#include <memory>
#include <utility>

#include "gil.h"
#include "python_log.h"
#include "python_selection.h"
#include "regard/backend.h"
#include "saved.h"

namespace regard::python {
namespace {

namespace nb = nanobind;

struct LastCall {
  PlannedCall planned;
  std::shared_ptr<const Selection> refused;  // no backend could run it
  std::vector<std::string> notes;
};
thread_local LastCall last_call;

std::string find_layer() {
  try {
    const nb::object name = run_function("regard._trace", "current_layer", nullptr);
    return nb::str(name).c_str();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("the layer of a traced call");
    return {};
  }
}

}  // namespace

CallScope::CallScope(Context& context, const std::string* layer) {
  follow_logger(context);
  if (!is_recording()) return;
  layer_ = layer != nullptr ? *layer : find_layer();
  scope_.emplace(layer_);
}

CallScope::~CallScope() { flush_log(); }

void remember_call(PlannedCall planned, const Status& status, std::vector<std::string> notes) {
  if (!planned.params) return;
  last_call.planned = std::move(planned);
  last_call.refused = status.selection();
  last_call.notes = std::move(notes);
}

nb::object last_selection() {
  if (last_call.refused != nullptr) return python_selection(*last_call.refused, last_call.notes);
  if (last_call.planned.plan.empty()) return nb::none();
  return python_selection(last_call.planned.selection(), last_call.notes, &last_call.planned.plan);
}

}  // namespace regard::python

#include "bind_trace.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bind_info.h"
#include "call_scope.h"
#include "errors.h"
#include "process_context.h"
#include "python_selection.h"
#include "regard/backend.h"
#include "regard/case.h"
#include "trace_recorder.h"

namespace regard::python {
namespace {

namespace nb = nanobind;

using RecordedRef = const RecordedCall&;

nb::object text_or_none(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.c_str()));
}

nb::object case_of(RecordedRef self) {
  return text_or_none(self.call.params ? to_string(*self.call.params) : "");
}

nb::object backend_of(RecordedRef self) {
  if (self.by_formula) return nb::str("math");
  return text_or_none(self.call.plan.empty() ? "" : to_string(self.call.plan.backend()));
}

nb::object selection_of(RecordedRef self) {
  if (const auto refused = self.call.status.selection(); refused != nullptr) {
    return python_selection(*refused);
  }
  if (self.call.plan.empty()) return nb::none();
  return python_selection(self.call.selection(), {}, &self.call.plan);
}

/// A number of work, which failed calls have none of.
nb::object number_or_none(double number) {
  return number > 0.0 ? nb::object(nb::float_(number)) : nb::none();
}

/// A field of the plan of the call's direction; None without a plan.
template <class Field>
nb::object of_kernel(RecordedRef self, Field field) {
  const KernelPlan* const kernel = self.call.kernel();
  return kernel != nullptr ? nb::cast(field(*kernel)) : nb::none();
}

void bind_call(nb::module_& module) {
  nb::class_<RecordedCall>(module, "TracedCall", "One call that a regard.trace has recorded.")
      .def_prop_ro("case", &case_of, "The problem, as regard.explain takes it.")
      .def_prop_ro(
          "direction", [](RecordedRef self) { return to_string(self.call.direction); },
          "'forward' or 'backward'.")
      .def_prop_ro("backend", &backend_of, "The backend that ran; None where none was found.")
      .def_prop_ro(
          "kernel",
          [](RecordedRef self) {
            if (self.by_formula) return nb::object(nb::str("aten_formula"));
            return of_kernel(self, [](const KernelPlan& k) { return k.kernel; });
          },
          "The kernel's name; 'aten_formula' where PyTorch's own operators computed the call.")
      .def_prop_ro(
          "isa",
          [](RecordedRef self) {
            return of_kernel(self, [](const KernelPlan& k) { return to_string(k.isa); });
          },
          "The instruction set of the kernel.")
      .def_prop_ro(
          "workspace_bytes",
          [](RecordedRef self) {
            return of_kernel(self, [](const KernelPlan& k) { return k.workspace_bytes; });
          },
          "Scratch memory of the call.")
      .def_prop_ro(
          "seconds", [](RecordedRef self) { return static_cast<double>(self.call.ns) * 1e-9; },
          "How long the call took inside the library.")
      .def_prop_ro(
          "predicted_seconds",
          [](RecordedRef self) { return number_or_none(self.call.predicted.seconds); },
          "What the cost model predicts for the call; None where it has no prediction.")
      .def_prop_ro(
          "operations", [](RecordedRef self) { return number_or_none(self.call.work.operations); },
          "Floating-point operations, a multiply-add counting as two: 2 (head_dim_qk +\n"
          "head_dim_v) forward and 2 (3 head_dim_qk + 2 head_dim_v) backward for each query head\n"
          "and pair of a query and a key that lengths, windows and the diagonal leave.")
      .def_prop_ro(
          "bytes", [](RecordedRef self) { return number_or_none(self.call.work.bytes); },
          "Bytes of inputs and outputs, each once; of k and v, of keys that a query sees.")
      .def_prop_ro(
          "share_of_peak",
          [](RecordedRef self) {
            return number_or_none(shares_of(self.call, rates_of_machine()).of_peak);
          },
          "Operations a second over this machine's peak, which the first use measures\n"
          "(regard.machine_rates); None where either is unknown.")
      .def_prop_ro(
          "share_of_bandwidth",
          [](RecordedRef self) {
            return number_or_none(shares_of(self.call, rates_of_machine()).of_bandwidth);
          },
          "Bytes a second over the bandwidth of reads; caches may deliver more than 1.")
      .def_prop_ro(
          "layer", [](RecordedRef self) { return text_or_none(self.layer); },
          "The module that made the call, by its name in the model; None where it is unknown.")
      .def_prop_ro(
          "thread", [](RecordedRef self) { return self.thread; },
          "threading.get_ident() of the thread that made the call.")
      .def_prop_ro(
          "error", [](RecordedRef self) { return text_or_none(self.call.status.message()); },
          "Why the call failed; None where it did not.")
      .def_prop_ro("selection", &selection_of, "The regard.Selection of the call.");
}

/// The rows of regard::calibration as dicts.
nb::list calibration_of(const std::vector<std::shared_ptr<const RecordedCall>>& recorded,
                        double limit) {
  std::vector<CallTrace> calls;
  for (const auto& call : recorded) calls.push_back(call->call);
  nb::list rows;
  for (const Calibration& row : calibration(calls, limit)) {
    nb::dict fields;
    fields["case"] = row.problem;
    fields["backend"] = to_string(row.backend);
    fields["direction"] = to_string(row.direction);
    fields["calls"] = row.calls;
    fields["measured_seconds"] = row.measured_seconds;
    fields["predicted_seconds"] = row.predicted_seconds;
    fields["spread"] = row.spread;
    fields["ratio"] = row.ratio;
    rows.append(fields);
  }
  return rows;
}

/// A call of MATH that PyTorch's operators have computed.
void record_formula(const std::string& words, double seconds) {
  const Expected<Case> problem = parse_case(words);
  if (!problem) raise_status(problem.status());
  RecordedCall made;
  made.by_formula = true;
  made.call.params = problem->params;
  made.call.ns = static_cast<std::int64_t>(seconds * 1e9);
  const CallScope scope(process_context());
  record_call(std::move(made));
}

}  // namespace

void bind_trace(nb::module_& module) {
  bind_call(module);
  nb::class_<Recording>(module, "Recording", "The calls of a regard.trace.")
      .def(nb::init<>())
      .def("open", &Recording::open, "From here on every call of the process is recorded.")
      .def("close", &Recording::close)
      .def("calls", &Recording::calls, "The calls so far, in the order in which they ended.");
  module.def("calibration", &calibration_of, nb::arg("calls"), nb::arg("limit"),
             "Predicted and measured times by case, for regard.trace.");
  module.def("is_recording", &is_recording, "Whether a regard.trace is open.");
  module.def("record_formula", &record_formula, nb::arg("case"), nb::arg("seconds"),
             "Records a call that PyTorch's operators have computed; for regard.torch.");
  module.def("last_selection", &last_selection,
             R"(The Selection of this thread's last call of attention or attention_backward, on any
kind of array; None before the first one.

    >>> import numpy as np, regard
    >>> q = k = v = np.ones((1, 2, 5, 64), np.float32)
    >>> out = regard.attention(q, k, v, backends='math')
    >>> regard.last_selection().chosen
    'math'

More: `python -m regard docs python`.)");
}

}  // namespace regard::python

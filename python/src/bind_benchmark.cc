#include "bind_benchmark.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bind_policy.h"
#include "call.h"
#include "process_context.h"
#include "regard/benchmark.h"

namespace regard::python {
namespace {

constexpr Signature kPlanBenchmark{"benchmark", {kQ, kK, kV}, args_between(kQ, kOut)};

/// The call's tensors with those of its backward, which no row reads: their sizes count.
AttentionGradRequest with_gradients(const AttentionRequest& call) {
  AttentionGradRequest request;
  static_cast<AttentionRequest&>(request) = call;
  if (!call.options.needs_grad) return request;
  request.saved.stats = call.saved_stats;
  request.saved.kind = SavedContext::Kind::kStats;
  request.d_out = call.out;
  request.d_q = call.q;
  request.d_k = call.k;
  request.d_v = call.v;
  request.d_bias = call.attn_bias;
  request.d_sinks = call.sinks;
  return request;
}

/// Signals that came to the thread since; their handlers may raise.
bool python_is_interrupted(void*) noexcept { return PyErr_CheckSignals() != 0; }

/// A Benchmark that Python's callables are measured for.
class Measurement {
 public:
  explicit Measurement(Benchmark result) : result_(std::move(result)) {}

  nb::list rows() const {
    nb::list list;
    for (const BenchmarkRow& row : result_.rows) {
      list.append(nb::make_tuple(row.name, row.backward, row.reason));
    }
    return list;
  }

  /// A row beside regard's backends, in the order of directions.
  void add_row(const std::string& name, bool backward, const std::string& reason,
               const std::string& kernel, int workers) {
    BenchmarkRow row;
    row.name = name;
    row.backward = backward;
    row.reason = reason;
    row.kernel = kernel;
    row.workers = workers;
    auto place = result_.rows.begin();
    for (auto at = place; at != result_.rows.end(); ++at) {
      if (at->backward != backward) continue;
      row.work = at->work;
      place = at + 1;
    }
    result_.rows.insert(place, std::move(row));
  }

  void add_note(const std::string& note) { result_.notes.push_back(note); }

  /// `calls` has a callable, or None, for each row.
  void measure(const std::vector<nb::object>& calls, double seconds, int rounds) {
    std::vector<std::function<Status()>> functions;
    for (const nb::object& call : calls) {
      if (call.is_none()) {
        functions.emplace_back();
      } else {
        functions.emplace_back([this, &call] { return call_once(call); });
      }
    }
    BenchmarkOptions options;
    options.seconds = seconds;
    options.rounds = rounds;
    options.poll = python_is_interrupted;
    regard::measure(&result_, functions, options);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
  }

  std::string text() const { return to_string(result_); }
  std::string json() const { return to_json(result_); }

 private:
  /// An exception is the reason why a row is not measured, but one that ends the program.
  Status call_once(const nb::object& call) {
    PyObject* const made = PyObject_CallNoArgs(call.ptr());
    if (made != nullptr) {
      Py_DECREF(made);
      return {};
    }
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return Status(StatusCode::kInterrupted, "");
    const nb::python_error error;
    return Status(StatusCode::kInternal, nb::cast<std::string>(nb::str(error.value())));
  }

  Benchmark result_;
};

/// Positional and keyword arguments in CPython's own calling convention.
Arguments arguments_of(const nb::args& positional, const nb::kwargs& keywords) {
  std::vector<PyObject*> values;
  for (const nb::handle value : positional) values.push_back(value.ptr());
  nb::list names;
  for (const auto [name, value] : keywords) {
    names.append(name);
    values.push_back(value.ptr());
  }
  const nb::tuple all_names(names);
  return parse_arguments(
      kPlanBenchmark, {values.data(), static_cast<Py_ssize_t>(positional.size()), all_names.ptr()});
}

Measurement plan_call(const nb::args& positional, const nb::kwargs& keywords) {
  const Call call(arguments_of(positional, keywords), Call::Purpose::kCompute);
  if (call.padded) {
    raise_value(
        "lengths of padded arrays are not supported by benchmark; expected seqlens_q and "
        "seqlens_kv, attn_mask, or packed arrays of unpad()");
  }
  const AmbientScopes scopes;
  Context& context = process_context();
  const AttentionGradRequest request = with_gradients(call.request);
  Expected<Benchmark> planned = [&] {
    const nb::gil_scoped_release unlocked;  // the machine may have to be measured
    return plan_benchmark(context, request, call.policy);
  }();
  if (!planned) raise_status(in_callers_words(call, planned.status()));
  return Measurement(*std::move(planned));
}

}  // namespace

void bind_benchmark(nb::module_& module) {
  nb::class_<Measurement>(module, "Measurement")
      .def("rows", &Measurement::rows)
      .def("add_row", &Measurement::add_row)
      .def("add_note", &Measurement::add_note)
      .def("measure", &Measurement::measure)
      .def("text", &Measurement::text)
      .def("json", &Measurement::json);
  module.def("plan_benchmark", &plan_call,
             "What regard.benchmark(...) would measure, without times.");
}

}  // namespace regard::python

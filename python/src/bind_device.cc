#include "bind_device.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "bind_policy.h"
#include "call_scope.h"
#include "dlpack.h"
#include "errors.h"
#include "gil.h"
#include "inputs.h"
#include "openmp_team.h"
#include "process_context.h"
#include "python_selection.h"
#include "regard/context.h"
#include "regard/tensors.h"
#include "signals.h"

// Calls on tensors where they lie: those of a CUDA device, caches among them, and packed sequences.
// The package hands over every tensor, results included, so nothing here allocates, converts or
// waits.

namespace regard::python {
namespace {

using nb::literals::operator""_a;

void take_tensors(const nb::dict& tensors, AttentionGradRequest* request,
                  std::vector<nb::object>* owners) {
  std::size_t known = 0;
  for (const TensorSpec& spec : kTensors) {
    if (!tensors.contains(spec.name)) continue;
    const nb::object tensor = tensors[spec.name];
    TensorView* const view = spec.buffer != nullptr ? &(request->*spec.buffer)
                                                    : spec.in(static_cast<GradBuffers*>(request));
    *view = view_from_dlpack(tensor.ptr(), spec.name, owners);
    ++known;
  }
  if (known != tensors.size()) raise_type("tensors has a name that no tensor of a call has");
}

/// k or v of 4 bits, where `word` states that.
void take_codes(PyObject* word, const char* name, TensorView* view) {
  if (!is_u4(word, (std::string(name) + "_dtype").c_str())) return;
  *view = as_u4(*view, name, to_string(view->dtype));
}

void take_options(const nb::dict& values, AttentionGradRequest* request) {
  AttentionOptions& options = request->options;
  for (auto [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    PyObject* const given = value.ptr();
    if (name == "is_causal") {
      options.is_causal = read_bool(given, "is_causal");
    } else if (name == "diagonal") {
      options.diagonal = read_diagonal_word(given, "'top_left' or 'bottom_right' on a CUDA device");
    } else if (name == "window") {
      std::tie(options.window_left, options.window_right) = read_window(given);
    } else if (name == "softmax_scale") {
      options.softmax_scale = read_double(given, "softmax_scale");
    } else if (name == "softcap") {
      options.softcap = read_double(given, "softcap");
    } else if (name == "dropout_p") {
      options.dropout_p = read_double(given, "dropout_p");
    } else if (name == "max_seqlen_q") {
      request->max_seqlen_q = read_int64(given, "max_seqlen_q");
    } else if (name == "max_seqlen_kv") {
      request->max_seqlen_kv = read_int64(given, "max_seqlen_kv");
    } else if (name == "d_lse") {
      options.d_lse = read_bool(given, "d_lse");
    } else if (name == "rotary_interleaved") {
      options.rotary_interleaved = read_bool(given, "rotary_interleaved");
    } else if (name == "hadamard") {
      options.hadamard = read_bool(given, "hadamard");
    } else if (name == "k_dtype") {
      take_codes(given, "k", &request->k);
    } else if (name == "v_dtype") {
      take_codes(given, "v", &request->v);
    } else if (name == "seed") {
      request->rng_seed = request->saved.rng_seed = read_uint64(given, "seed");
    } else if (name != "backends") {
      raise_type("option " + name + " is not an option of a call on a device");
    }
  }
}

/// A call as regard takes it; `owners` keep the memory of its tensors.
struct CallRequest {
  CallRequest(const nb::dict& tensors, const nb::dict& options, nb::handle given, bool needs_grad) {
    take_tensors(tensors, &request, &owners);
    take_options(options, &request);
    request.options.needs_grad = needs_grad;
    const nb::object backends = options.get("backends", nb::none());
    policy = read_policy(given.is_none() ? nullptr : given.ptr(),
                         backends.is_none() ? nullptr : backends.ptr());
  }
  AttentionParams params() const {
    const Expected<AttentionParams> described = describe(request);
    if (!described) raise_status(described.status());
    return *described;
  }

  AttentionGradRequest request;
  std::vector<nb::object> owners;
  Policy policy;
};

nb::object explain_in_place(const nb::dict& tensors, const nb::dict& options, nb::handle policy,
                            bool needs_grad) {
  const CallRequest call(tensors, options, policy, needs_grad);
  const AmbientScopes scopes;
  return python_selection(explain(process_context(), call.params(), call.policy));
}

/// The name of the backend that ran, and the max_error of the policy that chose it, which chooses
/// the kernels of a CPU, too. For a backward, `backend` and `policy` are those of the forward.
std::pair<std::string, std::optional<double>> run_in_place(const nb::dict& tensors,
                                                           const nb::dict& options,
                                                           std::uint64_t stream, nb::handle policy,
                                                           nb::handle backend, bool needs_grad) {
  const bool backward = !backend.is_none();
  CallRequest call(tensors, options, policy, needs_grad || backward);
  AttentionGradRequest& request = call.request;
  std::optional<AmbientScopes> scopes;
  if (backward) {
    request.options.d_lse = request.d_lse.present();
    // The forward's backend, outside of every scope, and whatever its policy waived for it:
    // autograd comes back on another thread, which has neither.
    call.policy.only = {read_backend(backend.ptr(), "backend")};
    call.policy.assume_finite = true;
  } else {
    scopes.emplace();
  }
  Context& context = process_context();
  const CallScope scope(context);
  const Expected<Plan> made = plan(context, call.params(), call.policy);
  if (!made) {
    remember_call({call.params(), {}}, made.status(), {});
    raise_status(made.status());
  }
  Launch launch;
  PlannedCall planned;
  launch.planned = &planned;
  launch.stream = reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream));
  std::optional<Interrupt> interrupt;
  if (request.q.device.type == DeviceType::kCpu) {
    launch.executor = openmp_team();
    launch.interrupt = interrupt_by_signals(request, &interrupt);
  }
  request.saved.plan = *made;
  if (request.saved.stats.present()) request.saved.kind = SavedContext::Kind::kLse;
  Status status;
  {
    const GilRelease unlocked;
    status = backward ? attention_backward(context, request, {}, launch)
                      : attention(context, request, call.policy, launch);
  }
  const Plan& ran = planned.plan.empty() ? *made : planned.plan;
  const std::pair<std::string, std::optional<double>> chosen{to_string(ran.backend()),
                                                             ran.policy().max_error};
  remember_call(std::move(planned), status, {});
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // of a signal's handler
  if (!status.ok()) raise_status(status);
  return chosen;
}

}  // namespace

void bind_device(nb::module_& module) {
  module.def("run_in_place", &run_in_place, "tensors"_a, "options"_a, "stream"_a, "policy"_a.none(),
             "backend"_a.none(), "needs_grad"_a,
             "One call on tensors that all lie on one device, results included; for regard.torch.");
  module.def("explain_in_place", &explain_in_place, "tensors"_a, "options"_a, "policy"_a.none(),
             "needs_grad"_a, "The Selection of run_in_place with these arguments.");
  module.def(
      "built_with_cuda",
      [] {
        static const bool built = process_context().env().built_with_cuda;  // a copy of all of it
        return built;
      },
      "Whether this build has CUDA's backends.");
}

}  // namespace regard::python

#include "bind_info.h"

#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <string>

#include "arguments.h"
#include "gil.h"
#include "inputs.h"
#include "process_context.h"
#include "regard/machine_rates.h"

namespace regard::python {
namespace {

nb::object claims_of(const Claims& claims) {
  if (!claims.offered) return nb::none();
  nb::list dtypes;
  for (const DtypeClaim& claim : claims.dtypes) {
    nb::dict fields;
    fields["q"] = to_string(claim.q);
    fields["kv"] = to_string(claim.kv);
    fields["out"] = to_string(claim.out);
    fields["error_bound"] = claim.error_bound;
    fields["min_isa"] = to_string(claim.min_isa);
    fields["min_sm"] = claim.min_sm;
    dtypes.append(fields);
  }
  nb::list features;
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (claims.features.has(feature)) features.append(to_string(feature));
  }
  nb::dict fields;
  fields["dtypes"] = dtypes;
  fields["features"] = features;
  fields["head_dim_qk"] = nb::make_tuple(claims.head_dim_qk.min, claims.head_dim_qk.max);
  fields["head_dim_v"] = nb::make_tuple(claims.head_dim_v.min, claims.head_dim_v.max);
  return fields;
}

nb::list devices() {
  nb::list list;
  for (const BackendInfo& info : process_context().backends()) {
    nb::dict fields;
    fields["backend"] = to_string(info.ref).c_str();
    fields["device"] = to_string(info.device);
    fields["built"] = info.built;
    fields["not_built_reason"] =
        info.built ? nb::none() : nb::object(nb::str(info.not_built_reason.c_str()));
    fields["min_isa"] = to_string(info.min_isa);
    fields["min_sm"] = info.min_sm;
    fields["determinism"] = to_string(info.determinism);
    fields["summary"] = info.summary.c_str();
    fields["forward"] = claims_of(info.forward);
    fields["backward"] = claims_of(info.backward);
    list.append(fields);
  }
  return list;
}

nb::dict counters() {
  const PlanCacheCounters plans = process_context().plan_cache_counters();
  const CopyCounters copies = copy_counters();
  nb::dict fields;
  fields["copies"] = copies.copies;
  fields["copied_bytes"] = copies.bytes;
  fields["plan_hits"] = plans.hits;
  fields["plan_misses"] = plans.misses;
  fields["workspace_bytes"] = process_context().leased_workspace_bytes();
  const SelfCheckCounters checks = process_context().self_check_counters();
  fields["self_check_calls"] = checks.calls;
  fields["self_check_checked"] = checks.checked;
  fields["self_check_rows"] = checks.rows;
  fields["self_check_not_checked"] = checks.not_checked;
  fields["self_check_violations"] = checks.violations;
  return fields;
}

nb::list violations() {
  nb::list list;
  for (const SelfCheckViolation& v : process_context().self_check_violations()) {
    nb::dict fields;
    fields["text"] = v.to_string();
    fields["case"] = to_string(v.params);
    fields["backend"] = to_string(v.backend);
    fields["kernel"] = v.kernel;
    fields["output"] = v.output;
    fields["place"] = nb::make_tuple(v.batch, v.head, v.row);
    fields["error"] = v.error;
    fields["tolerance"] = v.tolerance;
    fields["denied"] = v.denied;
    fields["file"] = v.file;
    fields["command"] = v.command;
    list.append(fields);
  }
  return list;
}

nb::dict rates_dict(std::optional<std::int32_t> threads) {
  if (threads.value_or(1) < 1) {
    raise_value("threads (" + std::to_string(*threads) + ") must be at least 1, or None");
  }
  const MachineRates rates = rates_of_machine(threads);
  nb::dict fields;
  fields["isa"] = to_string(rates.isa);
  fields["threads"] = rates.threads;
  fields["f32_gflops"] = rates.f32_gflops;
  fields["f64_gflops"] = rates.f64_gflops;
  fields["bf16_gflops"] = rates.bf16_gflops;
  fields["read_gbps"] = rates.read_gbps;
  return fields;
}

void set_num_threads(const nb::object& given) {
  const std::int64_t count = read_int64(given.ptr(), "n");
  if (count < 1 || count > kMaxConcurrency) {
    raise_value("n (" + repr(given.ptr()) + ") must be 1 to " + std::to_string(kMaxConcurrency));
  }
  Context& context = process_context();
  Status status;
  {
    const GilRelease unlocked;  // others may hold a lock for a while
    status = set_process_concurrency(context, static_cast<std::int32_t>(count));
  }
  if (!status.ok()) raise_status(status);
}

}  // namespace

MachineRates rates_of_machine(std::optional<std::int32_t> threads) {
  const Env env = process_context().env();
  const GilRelease unlocked;
  return machine_rates(env.isa, threads.value_or(env.concurrency));
}

void bind_info(nb::module_& module) {
  module.def("devices", &devices,
             R"(Every backend of this build: what it is, what it computes and how exactly.

Returns a list of dicts, as `regard devices --json` prints them. `built` is False, and
`not_built_reason` states why, for a backend that this build leaves out.

    >>> import regard
    >>> [b['backend'] for b in regard.devices() if b['built'] and b['device'] == 'cpu']
    ['flash', 'efficient', 'math']

More: `python -m regard docs backends`.)");
  module.def("counters", &counters,
             R"(What this process has copied, planned and holds as workspace: a dict of integers.

    >>> import regard
    >>> sorted(regard.counters())[:2]
    ['copied_bytes', 'copies']

More: `python -m regard docs python`.)");
  module.def("self_check_violations", &violations,
             R"(What self-checks of this process found: a list of dicts, the first 16.

Each has case, backend, kernel, output, place (batch, head, row), error, tolerance, denied, file,
command (that reproduces it) and text, which says it all. Policy(self_check=N) turns checks on.

    >>> import regard
    >>> regard.self_check_violations()
    []

More: `python -m regard docs self_check`.)");
  module.def(
      "machine_rates", &rates_dict, nb::arg("threads").none() = nb::none(),
      "machine_rates(threads=None)\n--\n\n"
      "What this machine computes and reads at most, on that many threads (those of a call).\n\n"
      "f32_gflops, f64_gflops and bf16_gflops are 1e9 operations a second, a multiply-add\n"
      "counting as two; read_gbps is 1e9 bytes a second from memory; 0 is \"not measured\". The\n"
      "first call measures, in about a quarter of a second; the process remembers the result.\n\n"
      "    >>> import regard\n"
      "    >>> regard.machine_rates()['f32_gflops'] > 0\n"
      "    True\n\n"
      "Raises TypeError where threads is no integer, ValueError where it is below 1.\n\n"
      "More: `python -m regard docs performance`.");
  module.def(
      "environment_json",
      [] { return nb::str(to_json(with_devices(process_context().env())).c_str()); },
      "The machine, its CUDA devices and the environment variables, as JSON.");
  module.def(
      "set_num_threads", &set_num_threads, nb::arg("n").none(),
      "set_num_threads(n)\n--\n\n"
      "Later calls use at most n threads, the calling thread among them.\n\n"
      "n is an integer from 1 to 1024. Until the first call of this function it is\n"
      "REGARD_NUM_THREADS, or the number of CPUs that the process may use. It holds for\n"
      "every thread of the process and for children that it forks later; calls that run\n"
      "meanwhile finish as they began. Results have the same bits with any number. Calls on\n"
      "PyTorch's tensors use PyTorch's threads, at most torch.get_num_threads().\n\n"
      "    >>> import regard\n"
      "    >>> regard.set_num_threads(2)\n"
      "    >>> regard.get_num_threads()\n"
      "    2\n\n"
      "Raises ValueError for a number out of range, TypeError for another type.\n\n"
      "More: `python -m regard docs python`.");
  module.def(
      "get_num_threads", [] { return process_context().concurrency(); },
      "get_num_threads()\n--\n\nThe most threads that a call uses; set_num_threads changes it.\n\n"
      "    >>> import regard\n"
      "    >>> regard.get_num_threads() >= 1\n"
      "    True\n\n"
      "More: `python -m regard docs python`.");
  module.def(
      "trim", [] { process_context().trim(); }, R"(Frees workspace that no call is using.

    >>> import regard
    >>> regard.trim()

More: `python -m regard docs python`.)");
}

}  // namespace regard::python

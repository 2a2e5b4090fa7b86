#include <cstdio>

#include "tools/gpu_check/cases.h"
#include "tools/gpu_check/device_rates.h"
#include "tools/gpu_check/phase.h"

// Speeds: of the device without attention, of each backend, beside cuDNN, and of the host.

namespace regard::gpu_check {
namespace {

// What the measurements are held to.
constexpr double kMinRatio = 0.98;  // cuDNN's time over CUDNN's through regard
constexpr double kMaxOverheadUs = 8;

JsonLine failed(const std::string& error) {
  return JsonLine().add("result", "failed").add("detail", error);
}

void add_target(const Session& session, bool is_held, JsonLine* line) {
  if (!session.setup.rehearse) line->add("target", is_held ? "held" : "missed");
}

/// Whether the backend runs the case; else the line that says why not.
bool runs(Session& session, const Case& c, const BackendRef& backend, JsonLine* line) {
  const Selection selection =
      explain(session.context(), c.params, conformance::policy_for(c, backend));
  const Verdict* verdict = selection.find(backend);
  if (verdict != nullptr && verdict->usable) return true;
  line->add("result", "refused");
  if (verdict != nullptr && !verdict->refusals.empty()) {
    line->add("detail", to_string(verdict->refusals.front()));
  }
  return false;
}

BackendRef backend_of(const Session& session, const Item& item) {
  for (const BackendInfo& info : session.setup.backends) {
    if (to_string(info.ref) == item.backend) return info.ref;
  }
  return {BackendId::kEfficient};  // plays CUDNN in a rehearsal
}

}  // namespace

JsonLine run_rates(Session& session, const Item&) {
  JsonLine line;
  line.add("result", "measured");
  if (session.setup.rehearse) return line.add("name", "no device: a rehearsal");
  DeviceMemory& memory = session.memory();
  const DeviceFacts facts = read_facts(with_devices(session.context().env()));
  const int idle_clock = sm_clock_mhz();
  const double tflops = matmul_tflops(memory);
  const int clock = sm_clock_mhz();
  return line.add("name", facts.name)
      .add("sm_version", static_cast<long>(facts.sm_version))
      .add("driver", static_cast<long>(facts.driver))
      .add("runtime", static_cast<long>(facts.runtime))
      .add("cudnn", static_cast<long>(facts.cudnn))
      .add("memory_gib", facts.memory_gib, 1)
      .add("matmul_tflops", tflops, 1)
      .add("copy_gbps", copy_gbps(memory), 0)
      .add("idle_clock_mhz", static_cast<long>(idle_clock))
      .add("clock_mhz", static_cast<long>(clock));
}

JsonLine run_speed(Session& session, const Item& item) {
  const Case c = case_of(session.setup, item.words);
  const BackendRef backend = backend_of(session, item);
  JsonLine line;
  if (!runs(session, c, backend, &line)) return line;
  const Timing t = measure(session.bench(), c, backend);
  if (!t.error.empty()) return failed(t.error);
  line.add("result", "measured")
      .add("ms", t.median.ms, 5)
      .add("spread", t.median.spread, 3)
      .add("tflops", t.tflops, 2)
      .add("gbps", t.gbps, 1)
      .add("clock_mhz", static_cast<long>(t.clock_mhz))
      .add("kernel", t.kernel);
  for (const auto& [name, tflops] : t.variants) line.add("tflops " + name, tflops, 2);
  return line;
}

JsonLine run_cudnn(Session& session, const Item& item) {
  const Case c = case_of(session.setup, item.words);
  const BackendRef backend = backend_of(session, item);
  JsonLine line;
  if (!runs(session, c, backend, &line)) return line;
  const Comparison compared =
      compare_with_cudnn(session.bench(), c, backend, item.variant == "backward");
  if (!compared.error.empty()) return failed(compared.error);
  line.add("result", "measured")
      .add("ms", compared.regard.ms, 5)
      .add("direct_ms", compared.direct.ms, 5)
      .add("ratio", compared.ratio(), 3)
      .add("spread", compared.regard.spread, 3)
      .add("direct_spread", compared.direct.spread, 3);
  add_target(session, compared.ratio() >= kMinRatio, &line);
  return line;
}

JsonLine run_overhead(Session& session, const Item& item) {
  const Case c = case_of(session.setup, item.words);
  const BackendRef backend = backend_of(session, item);
  JsonLine line;
  if (!runs(session, c, backend, &line)) return line;
  const Overhead o = measure_overhead(session.bench(), c, backend);
  if (!o.error.empty()) return failed(o.error);
  line.add("result", "measured")
      .add("attention_us", o.attention_us, 2)
      .add("execute_us", o.execute_us, 2);
  add_target(session, o.attention_us <= kMaxOverheadUs, &line);
  return line;
}

JsonLine run_launch(Session& session, const Item& item) {
  const Case c = case_of(session.setup, item.words);
  JsonLine line;
  if (!runs(session, c, backend_of(session, item), &line)) return line;
  const std::string error = launch_once(session.bench(), c, backend_of(session, item));
  return error.empty() ? line.add("result", "passed") : failed(error);
}

}  // namespace regard::gpu_check

#include "regard/selection.h"

#include <cstddef>
#include <iterator>

#include "base/json_writer.h"
#include "core/select/predictions.h"
#include "core/select/selection_text.h"

namespace regard {
namespace {

void write_selection_json(JsonWriter& w, const Refusal& refusal, const BackendRef& alternative) {
  constexpr const char* kOps[] = {"none", "set", "clear", "at_most"};
  w.begin_object();
  w.key("code").value(to_string(refusal.code));
  w.key("message").value(to_string(refusal, alternative));
  w.key("limit").value(refusal.limit).key("actual").value(refusal.actual);
  w.key("in_backward").value(refusal.in_backward);
  if (refusal.fix.op == Fix::Op::kNone) {
    w.key("fix").null();
  } else {
    w.key("fix").begin_object();
    w.key("op").value(kOps[static_cast<int>(refusal.fix.op)]);
    w.key("field").value(refusal.fix.field).key("value").value(refusal.fix.value);
    w.key("text").value(to_string(refusal.fix));
    w.end_object();
  }
  w.end_object();
}

void write_bytes(JsonWriter& w, const char* key, std::int64_t bytes) {
  w.key(key);
  if (bytes < 0) {
    w.null();
  } else {
    w.value(bytes);
  }
}

void write_time(JsonWriter& w, const char* key, const PredictedTime& time) {
  w.key(key);
  if (!time.known()) {
    w.null();
    return;
  }
  w.begin_object().key("seconds").value(time.seconds);
  w.key("spread").value(time.spread).end_object();
}

void write_runner_up(JsonWriter& w, const std::optional<RunnerUp>& runner_up) {
  w.key("runner_up");
  if (!runner_up) {
    w.null();
    return;
  }
  w.begin_object().key("backend").value(to_string(runner_up->backend));
  w.key("ratio").value(runner_up->ratio);
  w.key("changes").begin_array();
  for (const Fix& change : runner_up->changes) {
    w.begin_object().key("field").value(change.field).key("value").value(change.value);
    w.key("text").value(to_string(change)).end_object();
  }
  w.end_array().end_object();
}

void write_cache_formats(JsonWriter& w, const std::vector<CacheFormatPrediction>& formats) {
  w.key("cache_formats").begin_array();
  for (const CacheFormatPrediction& format : formats) {
    w.begin_object().key("dtype").value(to_string(format.dtype));
    w.key("bytes").value(format.bytes).key("seconds").value(format.seconds);
    w.key("ratio").value(format.ratio).key("faster_from");
    if (format.faster_from) {
      w.value(*format.faster_from);
    } else {
      w.null();
    }
    w.end_object();
  }
  w.end_array();
}

void write_selection_json(JsonWriter& w, const Verdict& v, const BackendRef& alternative) {
  w.begin_object();
  w.key("backend").value(to_string(v.backend)).key("device").value(to_string(v.device));
  w.key("status").value(to_string(v.status()));
  w.key("built").value(v.built).key("enabled").value(v.enabled);
  w.key("usable").value(v.usable).key("chosen").value(v.chosen);
  write_bytes(w, "workspace_bytes", v.workspace_bytes);
  write_bytes(w, "backward_workspace_bytes", v.backward_workspace_bytes);
  write_time(w, "forward_time", v.forward_time);
  write_time(w, "backward_time", v.backward_time);
  w.key("error_bound");
  if (v.error_bound < 0.0) {
    w.null();
  } else {
    w.value(v.error_bound);
  }
  w.key("determinism");
  if (v.built) {
    w.value(to_string(v.determinism));
  } else {
    w.null();
  }
  w.key("needs_exact_extents").value(v.needs_exact_extents);
  w.key("refusals").begin_array();
  for (const Refusal& refusal : v.refusals) write_selection_json(w, refusal, alternative);
  w.end_array().end_object();
}

}  // namespace

const char* to_string(VerdictStatus status) noexcept {
  constexpr const char* kNames[] = {"chosen", "usable", "excluded by policy", "cannot run",
                                    "not built"};
  const auto i = static_cast<std::size_t>(status);
  return i < std::size(kNames) ? kNames[i] : "?";
}

VerdictStatus Verdict::status() const noexcept {
  if (chosen) return VerdictStatus::kChosen;
  if (!built) return VerdictStatus::kNotBuilt;
  if (!usable) return VerdictStatus::kCannotRun;
  return enabled ? VerdictStatus::kUsable : VerdictStatus::kExcluded;
}

double Verdict::predicted_seconds(bool needs_grad) const noexcept {
  if (!needs_grad || !forward_time.known()) return forward_time.seconds;
  return backward_time.known() ? forward_time.seconds + backward_time.seconds : -1.0;
}

const Verdict* Selection::find(const BackendRef& ref) const noexcept {
  for (const Verdict& verdict : candidates) {
    if (verdict.backend == ref) return &verdict;
  }
  return nullptr;
}

BackendRef Selection::alternative() const {
  if (ok()) return chosen;
  for (const Verdict& verdict : candidates) {
    if (verdict.usable) return verdict.backend;
  }
  return {};
}

std::string to_json(const Selection& selection) {
  JsonWriter w;
  w.begin_object();
  w.key("case").value(to_string(selection.params));
  w.key("params").raw(to_json(selection.params));
  w.key("key").raw(to_json(selection.key_params));
  w.key("policy").raw(to_json(selection.policy));
  w.key("chosen").value(to_string(selection.chosen));
  w.key("decided_by").value(selection.decided_by);
  w.key("advice").value(advice(selection));
  w.key("candidates").begin_array();
  const BackendRef alternative = selection.alternative();
  for (const Verdict& verdict : selection.candidates) write_selection_json(w, verdict, alternative);
  w.end_array();
  w.key("cost_source").value(selection.cost_source);
  write_runner_up(w, selection.runner_up);
  w.key("given_up").value(given_up(selection));
  w.key("prefix");
  if (selection.prefix.empty()) {
    w.null();
  } else {
    w.raw(to_json(selection.prefix.front()));
  }
  w.key("paths").begin_array();
  for (const PathPrediction& path : selection.paths) {
    w.begin_object();
    w.key("path").value(to_string(path.path));
    w.key("operations").value(path.operations);
    w.key("bytes").value(path.bytes);
    w.key("seconds").value(path.seconds);
    w.key("fastest").value(path.path == fastest_path(selection.paths));
    w.end_object();
  }
  w.end_array();
  write_cache_formats(w, selection.cache_formats);
  w.key("mask_blocks");
  if (selection.mask_shares) {
    w.begin_object().key("block_size").value(MaskShares::kMaskBlock);
    w.key("empty").value(selection.mask_shares->empty);
    w.key("partial").value(selection.mask_shares->partial).end_object();
  } else {
    w.null();
  }
  // On CPUs the arithmetic of 8-bit floats is that of f32.
  w.key("emulates_f8")
      .value(is_f8(selection.params.dtype_q) && selection.params.device.type == DeviceType::kCpu);
  w.key("environment").begin_object();
  for (const EnvVariable& v : selection.environment) w.key(v.name).value(v.value);
  w.end_object();
  w.key("warnings").begin_array();
  for (const std::string& warning : selection.warnings) w.value(warning);
  w.end_array().end_object();
  return w.str();
}

}  // namespace regard

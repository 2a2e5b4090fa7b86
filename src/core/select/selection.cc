#include "regard/selection.h"

#include <cstdio>

#include "base/json_writer.h"

namespace regard {
namespace {

std::string yes_no(bool value) { return value ? "yes" : "no"; }

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 0) return "-";
  char text[32];
  const double kib = static_cast<double>(bytes) / 1024.0;
  if (bytes < 10240) {
    std::snprintf(text, sizeof(text), "%lld B", static_cast<long long>(bytes));
  } else if (kib < 10240.0) {
    std::snprintf(text, sizeof(text), "%.0f KiB", kib);
  } else {
    std::snprintf(text, sizeof(text), "%.1f MiB", kib / 1024.0);
  }
  return text;
}

std::string error_text(double bound) {
  if (bound < 0.0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1e", bound);
  return text;
}

std::string pad(const std::string& text, std::size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 1, ' ');
}

void write_json(JsonWriter& w, const Refusal& refusal) {
  constexpr const char* kOps[] = {"none", "set", "clear", "at_most"};
  w.begin_object();
  w.key("code").value(to_string(refusal.code));
  w.key("limit").value(refusal.limit).key("actual").value(refusal.actual);
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

void write_json(JsonWriter& w, const Verdict& v) {
  w.begin_object();
  w.key("backend").value(to_string(v.backend));
  w.key("built").value(v.built).key("enabled").value(v.enabled);
  w.key("usable").value(v.usable).key("chosen").value(v.chosen);
  write_bytes(w, "workspace_bytes", v.workspace_bytes);
  write_bytes(w, "backward_workspace_bytes", v.backward_workspace_bytes);
  w.key("error_bound");
  if (v.error_bound < 0.0) {
    w.null();
  } else {
    w.value(v.error_bound);
  }
  w.key("determinism").value(to_string(v.determinism));
  w.key("needs_exact_extents").value(v.needs_exact_extents);
  w.key("refusals").begin_array();
  for (const Refusal& refusal : v.refusals) write_json(w, refusal);
  w.end_array().end_object();
}

std::string candidate_line(const Verdict& v, bool needs_grad) {
  std::string line = pad(to_string(v.backend), 16) + pad(yes_no(v.built), 7) +
                     pad(yes_no(v.enabled), 9) + pad(yes_no(v.usable), 8) +
                     pad(v.chosen ? "CHOSEN" : "no", 8) + pad(bytes_text(v.workspace_bytes), 11);
  if (needs_grad) line += pad(bytes_text(v.backward_workspace_bytes), 10);
  line += pad(error_text(v.error_bound), 9) + to_string(v.determinism);
  for (const Refusal& refusal : v.refusals) line += "\n  - " + to_string(refusal);
  return line + "\n";
}

}  // namespace

const Verdict* Selection::find(const BackendRef& ref) const noexcept {
  for (const Verdict& verdict : candidates) {
    if (verdict.backend == ref) return &verdict;
  }
  return nullptr;
}

std::string to_string(const Selection& selection) {
  std::string out = "case     " + to_string(selection.params) + "\n";
  AttentionParams rounded = selection.key_params;
  rounded.features.set(Feature::kNonFiniteBehindMask, false);
  if (rounded != selection.params) out += "judged   " + to_string(rounded) + "\n";
  const std::string policy = to_string(selection.policy);
  if (!policy.empty()) out += "policy   " + policy + "\n";
  for (const EnvVariable& v : selection.environment)
    out += "env      " + v.name + "=" + v.value + "\n";
  out += "chosen   " + to_string(selection.chosen) + ", by " + selection.decided_by + "\n\n";
  const bool needs_grad = selection.params.features.has(Feature::kNeedsGrad);
  out += "backend         built  enabled  usable  chosen  workspace  ";
  out += needs_grad ? "backward  " : "";
  out += "error    determinism\n";
  for (const Verdict& verdict : selection.candidates) out += candidate_line(verdict, needs_grad);
  for (const std::string& warning : selection.warnings) out += "warning: " + warning + "\n";
  return out;
}

std::string to_json(const Verdict& verdict) {
  JsonWriter w;
  write_json(w, verdict);
  return w.str();
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
  w.key("candidates").begin_array();
  for (const Verdict& verdict : selection.candidates) write_json(w, verdict);
  w.end_array();
  w.key("environment").begin_object();
  for (const EnvVariable& v : selection.environment) w.key(v.name).value(v.value);
  w.end_object();
  w.key("warnings").begin_array();
  for (const std::string& warning : selection.warnings) w.value(warning);
  w.end_array().end_object();
  return w.str();
}

}  // namespace regard

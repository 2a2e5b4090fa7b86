#include "regard/policy.h"

#include <algorithm>
#include <cctype>

#include "base/hash.h"
#include "base/json_writer.h"
#include "base/message.h"
#include "base/text.h"
#include "core/text/backend_names.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

struct BackendName {
  const char* name;
  BackendId id;
};

// The first spelling of each id is the one that is printed; the rest are PyTorch's and its users'.
constexpr BackendName kBackendNames[] = {
    {"math", BackendId::kMath},
    {"flash", BackendId::kFlash},
    {"efficient", BackendId::kEfficient},
    {"cudnn", BackendId::kCudnn},
    {"error", BackendId::kError},
    {"flash_attention", BackendId::kFlash},
    {"efficient_attention", BackendId::kEfficient},
    {"memory_efficient", BackendId::kEfficient},
    {"mem_efficient", BackendId::kEfficient},
    {"cudnn_attention", BackendId::kCudnn},
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// One text per field type, shared by the text form and the hash.
std::string field_text(const std::vector<BackendRef>& refs) { return join_backends(refs); }
std::string field_text(const std::optional<std::vector<BackendRef>>& refs) {
  return refs ? "[" + join_backends(*refs) + "]" : "";
}
std::string field_text(const std::optional<Determinism>& level) {
  return level ? to_string(*level) : "";
}
std::string field_text(const std::optional<OnFallback>& value) {
  return value ? to_string(*value) : "";
}
std::string field_text(const std::optional<double>& x) { return x ? number_text(*x) : ""; }
std::string field_text(const std::optional<std::int64_t>& n) { return n ? std::to_string(*n) : ""; }
std::string field_text(const std::optional<std::string>& text) { return text.value_or(""); }
std::string field_text(const std::optional<bool>& b) { return b ? (*b ? "true" : "false") : ""; }

void write_policy_json(JsonWriter& w, const std::vector<BackendRef>& refs) {
  w.begin_array();
  for (const BackendRef& ref : refs) w.value(to_string(ref));
  w.end_array();
}
void write_policy_json(JsonWriter& w, Determinism level) { w.value(to_string(level)); }
void write_policy_json(JsonWriter& w, OnFallback value) { w.value(to_string(value)); }
void write_policy_json(JsonWriter& w, double x) { w.value(x); }
void write_policy_json(JsonWriter& w, std::int64_t n) { w.value(n); }
void write_policy_json(JsonWriter& w, bool b) { w.value(b); }
void write_policy_json(JsonWriter& w, const std::string& text) { w.value(text); }
template <class T>
void write_policy_json(JsonWriter& w, const std::optional<T>& value) {
  if (value) {
    write_policy_json(w, *value);
  } else {
    w.null();
  }
}

}  // namespace

std::string to_string(const BackendRef& ref) {
  if (ref.id == BackendId::kCustom) return "custom:" + ref.custom_name;
  for (const BackendName& entry : kBackendNames) {
    if (entry.id == ref.id) return entry.name;
  }
  return "?";
}

Expected<BackendRef> parse_backend(std::string_view name) try {
  constexpr std::string_view kCustomPrefix = "custom:";
  if (name.substr(0, kCustomPrefix.size()) == kCustomPrefix && name.size() > kCustomPrefix.size()) {
    return BackendRef(BackendId::kCustom, std::string(name.substr(kCustomPrefix.size())));
  }
  std::string text = lower(name);
  constexpr std::string_view kTorchPrefix = "sdpbackend.";
  if (text.starts_with(kTorchPrefix)) text = text.substr(kTorchPrefix.size());
  for (const BackendName& entry : kBackendNames) {
    if (text == entry.name && entry.id != BackendId::kError) return BackendRef(entry.id);
  }
  return Status(StatusCode::kNotFound,
                "[parse_backend] unknown backend \"" + std::string(name) +
                    "\"; expected math, flash, efficient, cudnn, custom:<name> or PyTorch's "
                    "spellings (FLASH_ATTENTION, MEMORY_EFFICIENT, ...)");
} catch (...) {
  return status_of_exception("parse_backend");
}

namespace {
constexpr const char* kDeterminismNames[] = {"none", "run_to_run", "thread_count_invariant",
                                             "batch_invariant"};
constexpr const char* kOnFallbackNames[] = {"allow", "warn", "error"};
}  // namespace

const char* to_string(Determinism level) noexcept {
  const auto i = static_cast<std::size_t>(level);
  return i < std::size(kDeterminismNames) ? kDeterminismNames[i] : "?";
}

Expected<Determinism> parse_determinism(std::string_view name) try {
  for (std::size_t i = 0; i < std::size(kDeterminismNames); ++i) {
    if (name == kDeterminismNames[i]) return static_cast<Determinism>(i);
  }
  return Status(StatusCode::kNotFound,
                "[parse_determinism] unknown level \"" + std::string(name) +
                    "\"; expected none, run_to_run, thread_count_invariant or batch_invariant");
} catch (...) {
  return status_of_exception("parse_determinism");
}

const char* to_string(OnFallback value) noexcept {
  const auto i = static_cast<std::size_t>(value);
  return i < std::size(kOnFallbackNames) ? kOnFallbackNames[i] : "?";
}

Status validate(const Policy& policy, const char* where) try {
  const auto refused = [&](const char* name, auto value) {
    return invalid(where, name, " of policy (", value, ") must be at least 0");
  };
  if (policy.max_error && !(*policy.max_error >= 0)) return refused("max_error", *policy.max_error);
  if (policy.max_workspace_bytes && *policy.max_workspace_bytes < 0) {
    return refused("max_workspace_bytes", *policy.max_workspace_bytes);
  }
  if (policy.self_check && *policy.self_check < 0) return refused("self_check", *policy.self_check);
  return {};
} catch (...) {
  return status_of_exception(where);
}

std::size_t hash_value(const Policy& policy) {
  Hasher hasher;
  for_each_policy_field(
      policy, [&](const char*, const auto& field) { hasher.add_bytes(field_text(field)); });
  return hasher.value();
}

std::string to_string(const Policy& policy) {
  std::string out;
  for_each_policy_field(policy, [&](const char* name, const auto& field) {
    const std::string text = field_text(field);
    if (text.empty()) return;
    if (!out.empty()) out += ' ';
    out += std::string(name) + "=" + text;
  });
  return out;
}

std::string to_json(const Policy& policy) {
  JsonWriter w;
  w.begin_object();
  for_each_policy_field(policy, [&](const char* name, const auto& field) {
    w.key(name);
    write_policy_json(w, field);
  });
  w.end_object();
  return w.str();
}

}  // namespace regard

#include "regard/env.h"

#include "base/hash.h"
#include "base/json_writer.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

std::string field_text(DeviceType value) { return to_string(value); }
std::string field_text(Isa value) { return to_string(value); }
std::string field_text(std::int32_t value) { return std::to_string(value); }
std::string field_text(std::int64_t value) { return std::to_string(value); }
std::string field_text(const std::string& value) { return value; }
std::string field_text(bool value) { return value ? "true" : "false"; }
std::string field_text(const std::vector<CudaDevice>& devices) {
  std::string out;
  for (const CudaDevice& device : devices) {
    out += (out.empty() ? "" : ", ") + device.name + " sm" + std::to_string(device.sm_version);
  }
  return out;
}
std::string field_text(const std::vector<std::string>& warnings) {
  std::string out;
  for (const std::string& warning : warnings) out += (out.empty() ? "" : "; ") + warning;
  return out;
}
std::string field_text(const std::vector<EnvVariable>& variables) {
  std::string out;
  for (const EnvVariable& v : variables) {
    if (v.set) out += (out.empty() ? "" : " ") + v.name + "=" + v.value;
  }
  return out;
}

void write_env_json(JsonWriter& w, const std::vector<CudaDevice>& devices) {
  w.begin_array();
  for (const CudaDevice& device : devices) {
    w.begin_object().key("name").value(device.name);
    w.key("sm_version").value(device.sm_version).end_object();
  }
  w.end_array();
}
void write_env_json(JsonWriter& w, const std::vector<std::string>& warnings) {
  w.begin_array();
  for (const std::string& warning : warnings) w.value(warning);
  w.end_array();
}
void write_env_json(JsonWriter& w, const std::vector<EnvVariable>& variables) {
  w.begin_array();
  for (const EnvVariable& v : variables) {
    w.begin_object();
    w.key("name").value(v.name).key("set").value(v.set).key("value").value(v.value);
    w.key("error").value(v.error).key("meaning").value(v.meaning);
    w.end_object();
  }
  w.end_array();
}
void write_env_json(JsonWriter& w, DeviceType value) { w.value(to_string(value)); }
void write_env_json(JsonWriter& w, Isa value) { w.value(to_string(value)); }
template <class T>
void write_env_json(JsonWriter& w, const T& value) {
  w.value(value);
}

}  // namespace

Status env_status(const Env& env) try {
  for (const EnvVariable& v : env.variables) {
    if (v.error.empty()) continue;
    return Status(StatusCode::kInvalidArgument,
                  "[read_env] " + v.name + "=" + v.value + ": " + v.error);
  }
  return {};
} catch (...) {
  return status_of_exception("read_env");
}

const std::string& env_value(const Env& env, const char* name) {
  static const std::string kEmpty;
  for (const EnvVariable& v : env.variables) {
    if (v.name == name) return v.value;
  }
  return kEmpty;
}

std::uint64_t fingerprint(const Env& env) {
  Hasher hasher;
  for_each_env_field(env,
                     [&](const char*, const auto& field) { hasher.add_bytes(field_text(field)); });
  return hasher.value();
}

std::string to_string(const Env& env) {
  std::string out;
  for_each_env_field(env, [&](const char* name, const auto& field) {
    const std::string label(name);
    out += label + std::string(label.size() < 18 ? 18 - label.size() : 1, ' ') + field_text(field);
    out += '\n';
  });
  return out;
}

std::string to_json(const Env& env) {
  JsonWriter w;
  w.begin_object();
  for_each_env_field(env, [&](const char* name, const auto& field) {
    w.key(name);
    write_env_json(w, field);
  });
  w.end_object();
  return w.str();
}

}  // namespace regard

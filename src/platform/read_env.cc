#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/message.h"
#include "core/plan/freeze.h"
#include "core/plan/recorder.h"
#include "core/select/tuning.h"
#include "core/text/backend_names.h"
#include "core/text/number_parse.h"
#include "core/text/thrown_by.h"
#include "platform/cpu_info.h"
#include "platform/cuda_info.h"
#include "regard/env.h"
#include "regard/version.h"

namespace regard {
namespace {

std::string check_backends(const std::string& value) {
  const auto refs = parse_backend_list(value);
  return refs ? "" : refs.status().message();
}

std::string check_isa(const std::string& value) {
  const auto isa = parse_isa(value);
  return isa ? "" : unless_out_of_memory(isa.status()).message();
}

// 0 when `text` is not a whole number in 1..kMaxConcurrency.
int parse_threads(const std::string& text) {
  int n = 0;
  return parse_number(text, &n) && n >= 1 && n <= kMaxConcurrency ? n : 0;
}

std::string check_threads(const std::string& value) {
  return parse_threads(value) > 0
             ? ""
             : "expected a whole number from 1 to " + std::to_string(kMaxConcurrency);
}

std::string check_tuning(const std::string& value) {
  if (value == kNoTuning) return "";
  const auto table = read_tuning_table(value);
  return table ? "" : table.status().message();
}

std::string check_replay(const std::string& value) {
  const auto frozen = read_frozen(value);
  return frozen ? "" : frozen.status().message();
}

std::string check_log(const std::string& value) {
  return value == "select" || value == "trace" ? "" : "expected select or trace";
}

struct VariableSpec {
  const char* name;
  const char* meaning;
  std::string (*check)(const std::string& value);  // "" or what is wrong
};

// Every variable that regard reads. An empty value counts as unset.
constexpr VariableSpec kVariables[] = {
    {"REGARD_BACKEND", "only these backends, in this order of preference", check_backends},
    {"REGARD_DENY", "never these backends", check_backends},
    {"REGARD_MAX_ISA", "use no instruction set above this one", check_isa},
    {"REGARD_NUM_THREADS", "workers that a plan may use (default: the CPUs allowed)",
     check_threads},
    {"REGARD_TUNING",
     "a file with an order of backends measured on this machine, or none (default: what `regard "
     "tune` wrote)",
     check_tuning},
    {"REGARD_REPLAY", "frozen decisions: plans that differ from them are refused", check_replay},
    {"REGARD_RECORD", "a file that counts the cases of every call", check_record_path},
    {"REGARD_LOG", "select: a JSON line per decision; trace: per call, too", check_log},
};

std::vector<EnvVariable> read_variables() {
  std::vector<EnvVariable> variables;
  for (const VariableSpec& spec : kVariables) {
    EnvVariable v;
    v.name = spec.name;
    v.meaning = spec.meaning;
    const char* value = std::getenv(spec.name);
    if (value != nullptr && *value != '\0') {
      v.set = true;
      v.value = value;
      v.error = spec.check(v.value);
    }
    variables.push_back(std::move(v));
  }
  return variables;
}

// The number of single-letter changes that turn one name into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

const char* nearest_variable(std::string_view name) {
  const auto distance = [&](const VariableSpec& spec) { return edit_distance(name, spec.name); };
  return std::ranges::min_element(kVariables, {}, distance)->name;
}

// One warning for each REGARD_ name of the process that is not read. REGARD_DEV_ is for this
// repository's own scripts and tests.
std::vector<std::string> warn_unknown_names() {
  constexpr std::size_t kMaxNameBytes = 64;  // bounds the edit distance's work
  std::vector<std::string> warnings;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const auto is_name = [&](const VariableSpec& spec) { return name == spec.name; };
    if (!name.starts_with("REGARD_") || name.starts_with("REGARD_DEV_")) continue;
    if (std::ranges::any_of(kVariables, is_name)) continue;
    warnings.push_back(quoted(name) + " is not a variable that regard reads; the nearest is " +
                       nearest_variable(name.substr(0, kMaxNameBytes)));
  }
  return warnings;
}

std::string compiler_text() {
#if defined(__clang__)
  return "clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__);
#elif defined(__GNUC__)
  return "gcc " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__);
#else
  return "unknown";
#endif
}

}  // namespace

Env read_env() {
  const CpuInfo cpu = read_cpu_info();
  Env env;
  env.isa_available = cpu.isa;
  env.cpu_model = cpu.model;
  env.l1d_bytes = cpu.l1d_bytes;
  env.l2_bytes = cpu.l2_bytes;
  env.l3_bytes = cpu.l3_bytes;
  env.version = version();
  env.compiler = compiler_text();
  env.built_with_cuda = built_with_cuda();
  env.sm_version = kSmUnread;
  env.variables = read_variables();
  env.warnings = warn_unknown_names();

  const Expected<Isa> cap = parse_isa(env_value(env, "REGARD_MAX_ISA"));
  env.isa = unless_out_of_memory(cap.status()).ok() ? cpu.isa & *cap : cpu.default_isa;
  const int threads = parse_threads(env_value(env, "REGARD_NUM_THREADS"));
  env.concurrency = threads > 0 ? threads : cpu.num_cpus;
  return env;
}

Env with_devices(Env env) {
  if (env.sm_version != kSmUnread) return env;
  const CudaInfo cuda = read_cuda_info();
  env.sm_version = cuda.sm_version;
  env.device_name = cuda.device_name;
  env.cuda_devices = cuda.devices;
  env.cuda_driver = cuda.driver;
  env.cudnn_version = cuda.cudnn_version;
  return env;
}

}  // namespace regard

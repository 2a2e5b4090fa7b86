#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regard/export.h"
#include "regard/isa.h"
#include "regard/status.h"
#include "regard/tensor.h"

namespace regard {

/// One environment variable that regard reads.
struct EnvVariable {
  std::string name;
  std::string value;  // empty when unset
  bool set = false;
  std::string error;    // why the value cannot be used; empty when it can
  std::string meaning;  // one sentence for `regard env`
  friend bool operator==(const EnvVariable&, const EnvVariable&) = default;
};

/// One CUDA device that the process may see.
struct CudaDevice {
  std::string name;             // "NVIDIA H200"
  std::int32_t sm_version = 0;  // compute capability * 10; 0 where the driver does not state it
  friend bool operator==(const CudaDevice&, const CudaDevice&) = default;
};

/// The sm_version of an Env whose CUDA devices have not been read yet; see with_devices().
inline constexpr std::int32_t kSmUnread = -1;

inline constexpr std::int32_t kMaxConcurrency = 1024;

/// Facts about a machine, a build and the process's environment, read once. It is a plain value, so
/// tests and `explain` can describe another machine.
struct Env {
  DeviceType device = DeviceType::kCpu;
  std::int32_t sm_version = 0;  // CUDA compute capability * 10, 0 without a device, or kSmUnread
  // To be used: what the CPU has and REGARD_MAX_ISA allows; where that is not set, without dot
  // products of bf16 pairs on CPUs whose f32 products are faster.
  Isa isa = Isa::kScalar;
  Isa isa_available = Isa::kScalar;
  std::string cpu_model;  // "AMD EPYC (family 25 model 17)"
  std::int64_t l1d_bytes = 32768;
  std::int64_t l2_bytes = 1048576;
  std::int64_t l3_bytes = 33554432;
  std::int32_t concurrency = 1;  // workers that a plan may use, at most kMaxConcurrency
  std::string version;           // regard's own
  std::string compiler;
  bool built_with_cuda = false;
  // Of the visible CUDA devices; without one "", 0 and 0. sm_version is the smallest among them.
  std::string device_name;               // of the first: "NVIDIA H200"
  std::int32_t cuda_driver = 0;          // the newest CUDA that the driver serves, 13000 for 13.0
  std::int32_t cudnn_version = 0;        // of the library that was loaded, 91900 for 9.19.0
  std::vector<CudaDevice> cuda_devices;  // by index; a problem on cuda:N is decided for the N-th
  std::vector<EnvVariable> variables;    // every variable that is read, set or not
  // One sentence for each REGARD_ name that is set and not read; a Context logs them once.
  std::vector<std::string> warnings;
  friend bool operator==(const Env&, const Env&) = default;
};

/// Calls f("name", env.field) for every field, so that ==, fingerprint and JSON cover the same
/// ones.
template <class E, class F>
constexpr void for_each_env_field(E& e, F&& f) {
  f("device", e.device);
  f("sm_version", e.sm_version);
  f("isa", e.isa);
  f("isa_available", e.isa_available);
  f("cpu_model", e.cpu_model);
  f("l1d_bytes", e.l1d_bytes);
  f("l2_bytes", e.l2_bytes);
  f("l3_bytes", e.l3_bytes);
  f("concurrency", e.concurrency);
  f("version", e.version);
  f("compiler", e.compiler);
  f("built_with_cuda", e.built_with_cuda);
  f("device_name", e.device_name);
  f("cuda_driver", e.cuda_driver);
  f("cudnn_version", e.cudnn_version);
  f("cuda_devices", e.cuda_devices);
  f("variables", e.variables);
  f("warnings", e.warnings);
}

/// Reads CPUID, caches, the CPUs that the process may use and the eight REGARD_ variables. CUDA
/// devices stay unread: reading them starts the driver, which takes some 100 ms, and children that
/// are forked afterwards cannot use CUDA.
REGARD_EXPORT Env read_env();

/// The Env with the facts of the visible CUDA devices, which the first call in a process reads from
/// the driver. An Env that has an sm_version is returned unchanged. A Context, `explain` and
/// apply_overrides() call this for a problem on a CUDA device.
REGARD_EXPORT Env with_devices(Env env);

/// The first unusable environment variable as a Status; ok when all are usable.
REGARD_EXPORT Status env_status(const Env& env);

/// The value of a variable that is read ("" when unset or unknown).
REGARD_EXPORT const std::string& env_value(const Env& env, const char* name);

REGARD_EXPORT std::uint64_t fingerprint(const Env& env);
REGARD_EXPORT std::string to_string(const Env& env);
REGARD_EXPORT std::string to_json(const Env& env);

}  // namespace regard

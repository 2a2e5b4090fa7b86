#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "regard/export.h"
#include "regard/isa.h"
#include "regard/params.h"

namespace regard {

/// The measured peak rates of this machine's CPU, with which the rates of kernels are compared. All
/// threads together.
struct MachineRates {
  Isa isa = Isa::kScalar;    // of the instructions that were measured
  std::int32_t threads = 1;  // that ran at once
  // 1e9 operations a second; a multiply-add counts as two. 0: not measured.
  double f32_gflops = 0.0;
  double f64_gflops = 0.0;
  double bf16_gflops = 0.0;  // dot products of bf16 pairs; f32_gflops where `isa` has none
  double read_gbps = 0.0;    // 1e9 bytes a second read from memory; 0: not measured
  friend bool operator==(const MachineRates&, const MachineRates&) = default;
};

/// The rates of `isa` on `threads` threads (clamped to 1..1024). The first call with an instruction
/// set and a number of threads measures for about a quarter of a second (a second on a busy
/// machine); later calls return the same numbers. All rates are 0 where this CPU lacks `isa`.
///
///     const Env env = default_context().env();
///     const double peak = machine_rates(env.isa, env.concurrency).f32_gflops;
REGARD_EXPORT MachineRates machine_rates(Isa isa, std::int32_t threads);

/// Rates without a measurement: those of the CPU where `cpu_model` (Env::cpu_model) is one on
/// record, else typical ones of these instructions and threads.
REGARD_EXPORT MachineRates default_rates(Isa isa, std::int32_t threads,
                                         std::string_view cpu_model = {}) noexcept;
/// Whether default_rates() has the rates of this CPU, not those of its instructions.
REGARD_EXPORT bool has_recorded_rates(std::string_view cpu_model) noexcept;

/// Measures now. Arithmetic: the best of rounds of 0.4 ms in which all threads compute on
/// registers, by the processor time that they had. Bandwidth: the upper quartile of reads of some 2
/// MiB a thread; they need 256 MiB, and up to 2 GiB where there are large caches and many threads.
/// Without that memory, or without `bandwidth`, read_gbps is 0.
REGARD_EXPORT MachineRates measure_machine_rates(Isa isa, std::int32_t threads,
                                                 bool bandwidth = true);

/// The arithmetic rate that bounds a problem: bf16_gflops where q, k and v are bf16, f64_gflops for
/// f64, else f32_gflops.
REGARD_EXPORT double peak_gflops(const MachineRates& rates, const AttentionParams& params) noexcept;

/// {"isa": "avx2", "threads": 2, "f32_gflops": 150.1, ...}
REGARD_EXPORT std::string to_json(const MachineRates& rates);

}  // namespace regard

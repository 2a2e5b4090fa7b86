#pragma once

#include <cstdint>
#include <string>

#include "regard/export.h"
#include "regard/isa.h"
#include "regard/params.h"

namespace regard {

/// What the CPU of this machine computes and reads at most, measured: what the rates of kernels are
/// held against. All threads together.
struct MachineRates {
  Isa isa = Isa::kScalar;    // of the instructions that were measured
  std::int32_t threads = 1;  // that ran at once
  // 1e9 operations a second; a multiply-add counts as two. 0: not measured.
  double f32_gflops = 0.0;
  double f64_gflops = 0.0;
  double bf16_gflops = 0.0;  // dot products of bf16 pairs; f32_gflops where `isa` has none
  double read_gbps = 0.0;    // 1e9 bytes a second read from memory; 0: not measured
};

/// The rates of `isa` on `threads` threads of this process. The first call with an instruction set
/// and a number of threads measures, in about a quarter of a second (one on a busy machine); the
/// process remembers the result. `threads` is held to 1..1024. All rates are 0 where this CPU lacks
/// `isa`.
///
///     const Env& env = default_context().env();
///     const double peak = machine_rates(env.isa, env.concurrency).f32_gflops;
REGARD_EXPORT MachineRates machine_rates(Isa isa, std::int32_t threads);

/// The same, measured now and not remembered. Arithmetic: the best of rounds of 0.4 ms in which all
/// threads compute on registers, by the time that they had a processor. Bandwidth: what a quarter
/// of all reads of some 2 MiB a thread reach; they need 256 MiB for that time, and up to 2 GiB
/// where caches and threads are many. Where that memory is lacking, or without `bandwidth`,
/// read_gbps is 0.
REGARD_EXPORT MachineRates measure_machine_rates(Isa isa, std::int32_t threads,
                                                 bool bandwidth = true);

/// The rate of `rates` that bounds the products of a problem: bf16_gflops where q, k and v are
/// bf16, f64_gflops for f64, else f32_gflops.
REGARD_EXPORT double peak_gflops(const MachineRates& rates, const AttentionParams& params) noexcept;

/// {"isa": "avx2", "threads": 2, "f32_gflops": 150.1, ...}
REGARD_EXPORT std::string to_json(const MachineRates& rates);

}  // namespace regard

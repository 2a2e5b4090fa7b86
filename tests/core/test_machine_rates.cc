#include "regard/machine_rates.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "regard/env.h"

// Rates depend on the machine and on what else it runs: these tests hold what is true of all.

namespace regard {
namespace {

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Isa available() { return read_env().isa_available; }

std::vector<Isa> isas_of_this_machine() {
  std::vector<Isa> found;
  for (const Isa isa : named_isas()) {
    if (available().includes(isa)) found.push_back(isa);
  }
  return found;
}

TEST(MachineRates, PositiveAndPlausibleForEveryInstructionSet) {
  for (const Isa isa : isas_of_this_machine()) {
    SCOPED_TRACE(to_string(isa));
    const MachineRates rates = measure_machine_rates(isa, 1, /*bandwidth=*/false);
    EXPECT_EQ(rates.isa, isa);
    EXPECT_EQ(rates.threads, 1);
    EXPECT_GT(rates.f32_gflops, 0.1);
    EXPECT_LT(rates.f32_gflops, 2000.0);  // 64 lanes of multiply-adds a cycle at 15 GHz
    EXPECT_GE(rates.bf16_gflops, 0.3 * rates.f32_gflops);  // half as fast in pairs on Intel's cores
    // Half as many lanes; no less but where a program beside the test takes its time.
    EXPECT_GT(rates.f64_gflops, 0.2 * rates.f32_gflops);
    EXPECT_LT(rates.f64_gflops, 1.25 * rates.f32_gflops);
    EXPECT_EQ(rates.read_gbps, 0.0);
  }
}

// Pairs of bf16 are what kernels multiply by default where they are faster than f32, and only
// there: they have twice f32's rate on AMD's cores and half of it on Intel's.
TEST(MachineRates, PairsAreUsedWhereTheyAreFaster) {
  if (!available().includes(Isa::kAvx512Bf16)) GTEST_SKIP() << "no dot product of bf16 pairs";
  if (!env_value(read_env(), "REGARD_MAX_ISA").empty()) GTEST_SKIP() << "REGARD_MAX_ISA is set";
  const MachineRates rates = measure_machine_rates(Isa::kAvx512Bf16, 1, /*bandwidth=*/false);
  EXPECT_EQ(read_env().isa.includes(Isa::kAvx512Bf16) && !read_env().isa.includes(Isa::kAmxBf16),
            rates.bf16_gflops > rates.f32_gflops)
      << rates.bf16_gflops << " GFLOP/s in pairs, " << rates.f32_gflops << " in f32";
}

TEST(MachineRates, Bandwidth) {
  const MachineRates rates = measure_machine_rates(available(), 1);
  EXPECT_GT(rates.read_gbps, 0.2);
  EXPECT_LT(rates.read_gbps, 2000.0);
}

TEST(MachineRates, WiderVectorsAreNoSlower) {
  const std::vector<Isa> isas = isas_of_this_machine();
  const double portable = measure_machine_rates(isas.front(), 1, false).f32_gflops;
  const double best = measure_machine_rates(isas.back(), 1, false).f32_gflops;
  EXPECT_GT(best, 0.8 * portable);
}

TEST(MachineRates, SeveralThreadsTogether) {
  const MachineRates one = measure_machine_rates(available(), 1, false);
  const MachineRates two = measure_machine_rates(available(), 2, false);
  EXPECT_EQ(two.threads, 2);
  EXPECT_LT(two.f32_gflops, 3.0 * one.f32_gflops);
  EXPECT_GT(two.f32_gflops, 0.4 * one.f32_gflops);  // even where both share a busy core
}

TEST(MachineRates, MeasuredOnce) {
  const MachineRates first = machine_rates(Isa::kScalar, 1);
  MachineRates second;
  const double taken = seconds_of([&] { second = machine_rates(Isa::kScalar, 1); });
  EXPECT_EQ(first.f32_gflops, second.f32_gflops);
  EXPECT_EQ(first.read_gbps, second.read_gbps);
  EXPECT_LT(taken, 1e-3);
  EXPECT_EQ(machine_rates(Isa::kScalar, 2).threads, 2);
}

TEST(MachineRates, ThreadsAreHeldToTheirRange) {
  EXPECT_EQ(machine_rates(Isa::kScalar, 0).threads, 1);
  EXPECT_EQ(machine_rates(Isa::kScalar, std::numeric_limits<std::int32_t>::min()).threads, 1);
}

TEST(MachineRates, InstructionsThatThisMachineLacks) {
  for (const Isa isa : named_isas()) {
    if (available().includes(isa)) continue;
    const MachineRates rates = machine_rates(isa, 1);
    EXPECT_EQ(rates.f32_gflops, 0.0);
    EXPECT_EQ(rates.bf16_gflops, 0.0);
    EXPECT_EQ(rates.read_gbps, 0.0);
  }
}

TEST(MachineRates, ThePeakOfAProblem) {
  MachineRates rates;
  rates.f32_gflops = 2.0;
  rates.f64_gflops = 1.0;
  rates.bf16_gflops = 4.0;
  AttentionParams params;
  EXPECT_EQ(peak_gflops(rates, params), 2.0);
  params.dtype_q = params.dtype_k = params.dtype_v = Dtype::kBf16;
  EXPECT_EQ(peak_gflops(rates, params), 4.0);
  params.dtype_k = Dtype::kF8E4M3;
  EXPECT_EQ(peak_gflops(rates, params), 2.0);
  params.dtype_q = params.dtype_k = params.dtype_v = Dtype::kF64;
  EXPECT_EQ(peak_gflops(rates, params), 1.0);
}

TEST(MachineRates, Json) {
  MachineRates rates;
  rates.f32_gflops = 2.5;
  EXPECT_EQ(to_json(rates),
            R"({"isa":"scalar","threads":1,"f32_gflops":2.5,"f64_gflops":0,"bf16_gflops":0,)"
            R"("read_gbps":0})");
}

}  // namespace
}  // namespace regard

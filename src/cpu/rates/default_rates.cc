#include <algorithm>

#include "regard/machine_rates.h"

namespace regard {
namespace {

/// 1e9 operations a second of one thread.
struct ThreadRates {
  Isa isa;
  double f32, f64, pairs;
};
// Two vector units at some 2.5 GHz; the last row that a machine includes holds.
constexpr ThreadRates kThreads[] = {
    {Isa::kScalar, 6.0, 4.0, 6.0},        {Isa::kAvx2, 80.0, 40.0, 80.0},
    {Isa::kAvx512, 120.0, 60.0, 120.0},   {Isa::kAvx512Bf16, 120.0, 60.0, 240.0},
    {Isa::kAmxBf16, 120.0, 60.0, 2000.0}, {Isa::kNeon, 40.0, 20.0, 40.0},
    {Isa::kNeonBf16, 40.0, 20.0, 100.0},
};

}  // namespace

MachineRates default_rates(Isa isa, std::int32_t threads) noexcept {
  MachineRates rates;
  rates.isa = isa;
  rates.threads = std::clamp(threads, 1, 1024);
  const double count = rates.threads;
  for (const ThreadRates& thread : kThreads) {
    if (!isa.includes(thread.isa)) continue;
    rates.f32_gflops = count * thread.f32;
    rates.f64_gflops = count * thread.f64;
    rates.bf16_gflops = count * thread.pairs;
  }
  // Two threads of a Zen 4 draw 36 GB/s, for which the default terms hold; five use up two channels
  // of DDR5.
  rates.read_gbps = 18.0 * std::min(count, 5.0);
  return rates;
}

}  // namespace regard

#include <algorithm>
#include <charconv>
#include <string_view>

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

/// A CPU that was measured: what one thread of it does in f32, and reads. The CPU's name alone
/// tells how wide the units of AVX-512 are.
struct RecordedCpu {
  int family, first_model, last_model;
  double avx2, avx512;  // 1e9 operations of f32 a second
  double read;          // 1e9 bytes a second, with two threads at work
};
constexpr RecordedCpu kRecorded[] = {
    {25, 0, 15, 100.0, 0.0, 12.5},     // Zen 3
    {25, 16, 31, 118.0, 118.0, 18.0},  // Zen 4
    {26, 0, 31, 130.0, 262.0, 26.0},   // Zen 5
    {6, 207, 207, 95.0, 182.0, 17.0},  // Emerald Rapids
};

/// The number behind `word` in "AMD EPYC (family 26 model 2)"; -1: there is none.
int number_behind(std::string_view text, std::string_view word) noexcept {
  const std::size_t at = text.rfind(word);
  if (at == std::string_view::npos) return -1;
  text.remove_prefix(at + word.size());
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

const RecordedCpu* find_recorded(std::string_view cpu_model) noexcept {
  const int family = number_behind(cpu_model, "(family "),
            model = number_behind(cpu_model, " model ");
  for (const RecordedCpu& cpu : kRecorded) {
    if (cpu.family == family && cpu.first_model <= model && model <= cpu.last_model) return &cpu;
  }
  return nullptr;
}

}  // namespace

bool has_recorded_rates(std::string_view cpu_model) noexcept {
  return find_recorded(cpu_model) != nullptr;
}

MachineRates default_rates(Isa isa, std::int32_t threads, std::string_view cpu_model) noexcept {
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
  const double reading = std::min(count, 5.0);
  rates.read_gbps = 18.0 * reading;
  const RecordedCpu* const cpu = find_recorded(cpu_model);
  if (cpu == nullptr) return rates;
  rates.read_gbps = cpu->read * reading;
  const double f32 = isa.includes(Isa::kAvx512) ? cpu->avx512
                     : isa.includes(Isa::kAvx2) ? cpu->avx2
                                                : 0.0;
  if (!(f32 > 0.0)) return rates;
  const double factor = count * f32 / rates.f32_gflops;
  rates.f32_gflops *= factor;
  rates.f64_gflops *= factor;
  if (!isa.includes(Isa::kAmxBf16)) rates.bf16_gflops *= factor;
  return rates;
}

}  // namespace regard

#include "regard/machine_rates.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/json_writer.h"
#include "cpu/rates/loops.h"
#include "cpu/simd/kernel_isa.h"
#include "cpu/threads/thread_pool.h"
#include "platform/cpu_info.h"

namespace regard {
namespace {

using cpu::ArithmeticLoop;
using cpu::RateLoops;

/// Of the unit that computes in f32 and f64 on a machine of `isa`.
const RateLoops& loops_of(Isa isa) noexcept {
  const Isa unit = cpu::kernel_isa(isa);
#if defined(__x86_64__)
  if (unit == Isa::kAvx512) return cpu::kAvx512Rates;
  if (unit == Isa::kAvx2) return cpu::kAvx2Rates;
#elif defined(__aarch64__)
  if (unit == Isa::kNeon) return cpu::kNeonRates;
#endif
  static_cast<void>(unit);
  return cpu::kScalarRates;
}

/// Of the unit that multiplies bf16 pairs; null where there is none.
const ArithmeticLoop* pairs_of(Isa isa) noexcept {
  if (!isa.includes(cpu::pairs_isa())) return nullptr;
#if defined(__x86_64__) && !defined(REGARD_NO_AVX512_BF16)
#if defined(REGARD_HAS_AMX)
  if (isa.includes(Isa::kAmxBf16)) return &cpu::kAmxBf16Products;
#endif
  return &cpu::kAvx512Bf16Pairs;
#elif defined(__aarch64__)
  return &cpu::kNeonBf16Pairs;
#else
  return nullptr;
#endif
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds in which the calling thread had a processor.
double seconds_of_thread() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
#endif
  return now_seconds();
}

/// What loops return goes here, so that no compiler leaves them out.
std::atomic<double> g_sink{0.0};

/// The threads that measure together: those of a pool, as a kernel's are.
class Team {
 public:
  struct Time {
    double seconds = 0.0;         // from the common start to the last thread's end
    double thread_seconds = 0.0;  // of processors, all threads' sum
    bool is_disturbed = true;     // threads were not there, or other programs took a processor
  };

  explicit Team(std::int32_t threads) : threads_(threads), pool_(make_thread_pool(threads)) {}

  std::int32_t threads() const noexcept { return threads_; }

  /// Runs work(thread) once on each thread; the start is when the last of them is there.
  template <class Work>
  Time time_of(const Work& work) {
    Round<Work> round{work, {threads_}};
    pool_->run(threads_, Round<Work>::run, &round);
    return {now_seconds() - round.start, round.thread_seconds, round.is_disturbed};
  }

 private:
  template <class Work>
  struct Round {
    const Work& work;
    std::atomic<std::int32_t> missing;
    std::atomic<double> start{0.0};
    std::atomic<double> thread_seconds{0.0};
    std::atomic<bool> is_disturbed{false};

    static void run(void* state, int thread) {
      auto& round = *static_cast<Round*>(state);
      if (--round.missing == 0) {
        round.start = now_seconds();
      } else {
        round.wait_for_the_last();
      }
      const double start = now_seconds(), thread_start = seconds_of_thread();
      g_sink = round.work(thread);
      const double used = seconds_of_thread() - thread_start;
      round.thread_seconds += used;
      if (used < 0.97 * (now_seconds() - start)) round.is_disturbed = true;
    }

    /// Without yielding, or another program has the processor when the last one comes.
    void wait_for_the_last() {
      constexpr double kPatience = 5e-3;
      const double end = now_seconds() + kPatience;
      while (start == 0.0) {
        if (now_seconds() < end) continue;
        is_disturbed = true;  // a pool without threads runs one after another
        return;
      }
    }
  };

  std::int32_t threads_;
  std::unique_ptr<Executor> pool_;
};

// Arithmetic. Rounds are short, so that some fall between what else the machine runs, and kinds
// take turns, so that a change of the clock rate changes all of them.
constexpr double kRoundSeconds = 4e-4;
constexpr int kMinRounds = 20;
constexpr int kEnoughRounds = 4;      // near the best one: it is no outlier
constexpr double kMaxSeconds = 0.25;  // of all kinds

class ArithmeticRate {
 public:
  explicit ArithmeticRate(const ArithmeticLoop& loop) : loop_(loop) {}

  void measure_round(Team& team) {
    if (turns_ == 0) calibrate();
    const Team::Time time = team.time_of([this](int) { return loop_.run(turns_); });
    // By the processors' time: of a disturbed round, what it would have been without the others.
    const double threads = team.threads();
    const double rate = static_cast<double>(loop_.operations) * static_cast<double>(turns_) *
                        threads * threads / time.thread_seconds * 1e-9;
    (time.is_disturbed ? disturbed_ : undisturbed_).push_back(rate);
  }

  bool is_settled() const {
    const auto near = [best = best_of(undisturbed_)](double rate) { return rate > 0.98 * best; };
    return std::count_if(undisturbed_.begin(), undisturbed_.end(), near) >= kEnoughRounds;
  }

  /// Threads that share a core may only be measured while both have it.
  double gflops() const {
    return best_of(undisturbed_.size() < kEnoughRounds ? disturbed_ : undisturbed_);
  }

 private:
  static double best_of(const std::vector<double>& rates) {
    return rates.empty() ? 0.0 : *std::max_element(rates.begin(), rates.end());
  }

  /// How many turns of the loop fill a round.
  void calibrate() {
    turns_ = 1024;
    for (;; turns_ *= 2) {
      const double start = seconds_of_thread();
      g_sink = loop_.run(turns_);
      const double seconds = seconds_of_thread() - start;
      if (seconds < kRoundSeconds / 4) continue;
      const double factor = std::clamp(kRoundSeconds / seconds, 0.25, 4.0);
      turns_ = static_cast<std::int64_t>(static_cast<double>(turns_) * factor);
      return;
    }
  }

  const ArithmeticLoop& loop_;
  std::int64_t turns_ = 0;  // of the loop in a round
  std::vector<double> undisturbed_, disturbed_;
};

void measure_arithmetic(Isa isa, Team& team, MachineRates* rates) {
  const RateLoops& loops = loops_of(isa);
  const ArithmeticLoop* const pairs = pairs_of(isa);
  std::vector<ArithmeticRate> kinds{ArithmeticRate(loops.f32), ArithmeticRate(loops.f64)};
  if (pairs != nullptr) kinds.emplace_back(*pairs);
  const auto is_settled = [](const ArithmeticRate& kind) { return kind.is_settled(); };
  const double end = now_seconds() + kMaxSeconds;
  for (int round = 0; round < kMinRounds || now_seconds() < end; ++round) {
    for (ArithmeticRate& kind : kinds) kind.measure_round(team);
    if (round >= kMinRounds && std::all_of(kinds.begin(), kinds.end(), is_settled)) break;
  }
  rates->f32_gflops = kinds[0].gflops();
  rates->f64_gflops = kinds[1].gflops();
  rates->bf16_gflops = kinds[pairs != nullptr ? 2 : 0].gflops();  // else bf16 is converted
}

// Bandwidth. Pieces of the memory are read one after another by all threads.
constexpr double kMaxReadSeconds = 0.2;  // but each piece once

/// Takes lines out of every cache. Memory of several times a last level of 480 MB would take
/// seconds to fill.
void evict(const float* begin, std::int64_t floats) {
  constexpr std::int64_t kLine = 64 / sizeof(float);
  for (std::int64_t x = 0; x < floats; x += kLine) {
#if defined(__x86_64__)
    __builtin_ia32_clflush(begin + x);
#elif defined(__aarch64__)
    asm volatile("dc civac, %0" : : "r"(begin + x) : "memory");
#else
    static_cast<void>(begin);
#endif
  }
}

/// The memory that is read, a part of each piece for each thread.
struct Pieces {
  std::int64_t count, part_floats;
  std::int64_t bytes(std::int32_t threads) const {
    return part_floats * static_cast<std::int64_t>(sizeof(float)) * threads;  // of a piece
  }
};

Pieces pieces_of(std::int32_t threads) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  constexpr std::int64_t kPartTurns = 1400;  // some 2 MiB
  Pieces pieces{1, kPartTurns * cpu::kReadFloats};
  pieces.count = std::max<std::int64_t>(kBytes / pieces.bytes(threads), 8);
  return pieces;
}

double measure_read_gbps(const RateLoops& loops, Team& team) {
  const Pieces pieces = pieces_of(team.threads());
  const auto floats = static_cast<std::size_t>(pieces.count * pieces.part_floats) *
                      static_cast<std::size_t>(team.threads());
  const std::unique_ptr<float[]> memory(new (std::nothrow) float[floats]);
  if (memory == nullptr) return 0.0;
  const auto part_of = [&](std::int64_t piece, int thread) {
    return memory.get() + (piece * team.threads() + thread) * pieces.part_floats;
  };
  // Each thread fills what it reads: on machines with several memories the pages lie near it.
  team.time_of([&](int thread) {
    for (std::int64_t i = 0; i < pieces.count; ++i) {
      std::fill_n(part_of(i, thread), pieces.part_floats, 1.0f);
    }
    return 0.0;
  });
  std::vector<double> all, undisturbed;
  const double end = now_seconds() + kMaxReadSeconds;
  for (std::int64_t i = 0; i < 2 * pieces.count && (i < pieces.count || now_seconds() < end); ++i) {
    const std::int64_t piece = i % pieces.count;
    team.time_of([&](int thread) {
      evict(part_of(piece, thread), pieces.part_floats);
      return 0.0;
    });
    const Team::Time time = team.time_of([&](int thread) {
      return loops.read(part_of(piece, thread), pieces.part_floats / cpu::kReadFloats);
    });
    // Threads that took turns on a processor have read as fast as one thread does.
    all.push_back(std::min(time.seconds, time.thread_seconds));
    if (!time.is_disturbed) undisturbed.push_back(time.seconds);
  }
  // The slowest waited for other programs.
  std::vector<double>& seconds = undisturbed.size() < 8 ? all : undisturbed;
  const auto quarter = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 4);
  std::nth_element(seconds.begin(), quarter, seconds.end());
  return static_cast<double>(pieces.bytes(team.threads())) / *quarter * 1e-9;
}

/// Rates that this process has measured.
struct Memory {
  std::mutex mutex;  // held while one is measured: two at once would halve each other
  std::vector<MachineRates> rates;
};

Memory& memory() {
  static Memory& kept = *new Memory;  // never destroyed: threads may outlive main
  return kept;
}

}  // namespace

MachineRates measure_machine_rates(Isa isa, std::int32_t threads, bool bandwidth) {
  MachineRates rates;
  rates.isa = isa;
  rates.threads = std::clamp(threads, 1, 1024);
  const CpuInfo cpu = read_cpu_info();
  if (!cpu.isa.includes(isa)) return rates;
  try {
    Team team(rates.threads);
    measure_arithmetic(isa, team, &rates);
    if (bandwidth) rates.read_gbps = measure_read_gbps(loops_of(isa), team);
  } catch (const std::bad_alloc&) {  // what was not measured is 0
  }
  return rates;
}

MachineRates machine_rates(Isa isa, std::int32_t threads) {
  threads = std::clamp(threads, 1, 1024);
  const std::lock_guard lock(memory().mutex);
  for (const MachineRates& known : memory().rates) {
    if (known.isa == isa && known.threads == threads) return known;
  }
  memory().rates.push_back(measure_machine_rates(isa, threads));
  return memory().rates.back();
}

double peak_gflops(const MachineRates& rates, const AttentionParams& params) noexcept {
  if (params.dtype_q == Dtype::kF64) return rates.f64_gflops;
  const bool pairs = params.dtype_q == Dtype::kBf16 && params.dtype_k == Dtype::kBf16 &&
                     params.dtype_v == Dtype::kBf16;
  return pairs ? rates.bf16_gflops : rates.f32_gflops;
}

std::string to_json(const MachineRates& rates) {
  JsonWriter json;
  json.begin_object();
  json.key("isa").value(to_string(rates.isa));
  json.key("threads").value(rates.threads);
  json.key("f32_gflops").value(rates.f32_gflops);
  json.key("f64_gflops").value(rates.f64_gflops);
  json.key("bf16_gflops").value(rates.bf16_gflops);
  json.key("read_gbps").value(rates.read_gbps);
  json.end_object();
  return json.str();
}

}  // namespace regard

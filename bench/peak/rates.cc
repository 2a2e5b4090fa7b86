#include "bench/peak/rates.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "bench/peak/loops.h"

namespace regard::peak {

#if !defined(__x86_64__) && !defined(_M_X64)
Loop avx2_loop() { return {nullptr, 0}; }
Loop avx512_loop() { return {nullptr, 0}; }
#endif
#if (!defined(__x86_64__) && !defined(_M_X64)) || defined(REGARD_NO_AVX512_BF16)
Loop avx512_bf16_loop() { return {nullptr, 0}; }
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds from the moment at which all threads are there until the last has ended work(thread).
double together(int threads, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> others;
  const auto arrive_and_work = [&](int thread) {
    ++ready;
    while (ready.load() < threads) std::this_thread::yield();
    work(thread);
  };
  for (int i = 1; i < threads; ++i) others.emplace_back(arrive_and_work, i);
  ++ready;
  while (ready.load() < threads) std::this_thread::yield();
  const Clock::time_point start = Clock::now();
  work(0);
  for (std::thread& thread : others) thread.join();
  return seconds_since(start);
}

double gflops(const Loop& loop, int threads, double seconds) {
  if (loop.run == nullptr) return 0.0;
  std::atomic<float> sink{0.0f};
  std::int64_t rounds = 4096;
  for (;; rounds *= 2) {  // also the time in which the processor reaches its clock rate
    const Clock::time_point start = Clock::now();
    sink = loop.run(rounds);
    const double taken = seconds_since(start);
    if (taken < 0.004) continue;
    rounds = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(static_cast<double>(rounds) * seconds / taken));
    break;
  }
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    best = std::min(best, together(threads, [&](int) { sink = loop.run(rounds); }));
  }
  const double flops = static_cast<double>(loop.flops_per_round) * static_cast<double>(rounds);
  return flops * threads / best / 1e9;
}

}  // namespace

double f32_gflops(Isa isa, Isa available, int threads, double seconds) {
  if (!available.includes(isa)) return 0.0;
  if (isa.includes(Isa::kAvx512)) return gflops(avx512_loop(), threads, seconds);
  if (isa.includes(Isa::kAvx2)) return gflops(avx2_loop(), threads, seconds);
  return gflops(scalar_loop(), threads, seconds);
}

double bf16_gflops(Isa isa, Isa available, int threads, double seconds) {
  if (!available.includes(isa) || !isa.includes(Isa::kAvx512Bf16)) return 0.0;
  return gflops(avx512_bf16_loop(), threads, seconds);
}

double read_gbps(int threads, std::size_t bytes, int rounds) {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  constexpr std::size_t kStep = 16;  // vectors a turn: loads in flight enough to hide the additions
  const std::size_t turns = bytes / (kStep * sizeof(Words)) / static_cast<std::size_t>(threads);
  std::vector<std::vector<std::uint64_t>> parts(static_cast<std::size_t>(threads));
  // Each thread fills its own part, so that the pages lie where it reads them.
  together(threads,
           [&](int t) { parts[static_cast<std::size_t>(t)].assign(turns * kStep * 2, 1); });
  std::atomic<std::uint64_t> sink{0};
  const auto read = [&](int t) {
    const std::uint64_t* data = parts[static_cast<std::size_t>(t)].data();
    Words sum[kStep] = {};
    for (std::size_t k = 0; k < turns; ++k) {
      for (std::size_t u = 0; u < kStep; ++u) {
        Words word;
        std::memcpy(&word, data + (k * kStep + u) * 2, sizeof word);
        sum[u] += word;
      }
    }
    for (const Words& s : sum) sink += s[0] + s[1];
  };
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) best = std::min(best, together(threads, read));
  return static_cast<double>(turns * kStep * sizeof(Words)) * threads / best / 1e9;
}

}  // namespace regard::peak

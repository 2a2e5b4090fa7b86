#include "bench/peak/loops.h"

namespace regard::peak {
namespace {

// A vector of the compiler's own, so that this unit serves every processor.
using Floats = float __attribute__((vector_size(16)));

float run(std::int64_t rounds) {
  constexpr int kChains = 10;  // latency (7 or 8 cycles, add after multiply) times one a cycle
  Floats sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = Floats{} + static_cast<float>(i) * 1e-3f;
  const Floats factor = Floats{} + 0.999f, term = Floats{} + 1e-4f;
  for (std::int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 16
    for (Floats& chain : sum) chain = chain * factor + term;
  }
  float total = 0.0f;
  for (const Floats& chain : sum) total += chain[0] + chain[1] + chain[2] + chain[3];
  return total;
}

}  // namespace

Loop scalar_loop() { return {run, 10 * 4 * 2}; }

}  // namespace regard::peak

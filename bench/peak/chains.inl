#include "bench/peak/loops.h"

// The loop that every instruction set has, over its Step: a vector type of the compiler, how many
// chains hide the latency, and step(chain), which is one multiply-add. Included by the isa_*.cc, in
// an unnamed namespace: what it instantiates belongs to its unit alone.

namespace regard::peak {
namespace {

template <class Step>
float run(std::int64_t rounds) {
  using Vector = typename Step::Vector;
  Step step;
  Vector sum[Step::kChains];
  for (int i = 0; i < Step::kChains; ++i) sum[i] = Vector{} + static_cast<float>(i) * 1e-3f;
  for (std::int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 16
    for (Vector& chain : sum) chain = step(chain);
    step.end_round();
  }
  Vector total = sum[0];
  for (int i = 1; i < Step::kChains; ++i) total += sum[i];
  return total[0];
}

/// `products` multiply-adds a step.
template <class Step>
constexpr Loop loop_of(int products) {
  return {run<Step>, std::int64_t{2} * Step::kChains * products};
}

}  // namespace
}  // namespace regard::peak

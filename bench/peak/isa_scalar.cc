#include "bench/peak/chains.inl"

namespace regard::peak {
namespace {

struct Scalar {
  // A vector of the compiler's own, so that this unit serves every processor.
  using Vector = float __attribute__((vector_size(16)));
  static constexpr int kChains = 10;  // latency (7 or 8 cycles, add after multiply), one a cycle
  const Vector factor = Vector{} + 0.999f, term = Vector{} + 1e-4f;

  Vector operator()(Vector chain) const { return chain * factor + term; }
  void end_round() {}
};

}  // namespace

Loop scalar_loop() { return loop_of<Scalar>(4); }

}  // namespace regard::peak

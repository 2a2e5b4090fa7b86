#include "cpu/rates/loops.h"
#include "cpu/simd/simd_vector.h"

// The loops of loops.h over a vocabulary of vectors: the instructions that the kernels use.

namespace regard::cpu {

/// The sums of the products' block, which fill the registers; never fewer than 12, which hide the
/// latency of a multiplication and an addition apart.
template <class V>
constexpr int kChainRows = V::kRows* V::kVectors > 12 ? 8 : 4;
constexpr int kChainVectors = 3;

template <class V>
constexpr int kChains = kChainRows<V>* kChainVectors;

/// The sum of every lane of every chain.
template <class V, class Vec>
REGARD_KERNEL_FN double sum_of(const Vec (&sums)[kChainRows<V>][kChainVectors]) {
  double total = 0.0;
  for (int i = 0; i < kChainRows<V>; ++i) {
    for (int j = 0; j < kChainVectors; ++j) {
      for (int lane = 0; lane < V::kLanes; ++lane) total += static_cast<double>(sums[i][j][lane]);
    }
  }
  return total;
}

/// Applies `step` to every chain, `rounds` times.
template <class V, class Step>
REGARD_KERNEL_FN double run_chains(std::int64_t rounds, Step step) {
  using T = typename V::Scalar;
  typename V::Vec sums[kChainRows<V>][kChainVectors];
  for (int i = 0; i < kChainRows<V>; ++i) {
    for (int j = 0; j < kChainVectors; ++j) sums[i][j] = V::set(T(i) + T(j) / T(8));
  }
  for (std::int64_t round = 0; round < rounds; ++round) {
    REGARD_UNROLL for (int i = 0; i < kChainRows<V>; ++i) {
      REGARD_UNROLL for (int j = 0; j < kChainVectors; ++j) sums[i][j] = step(sums[i][j]);
    }
  }
  return sum_of<V>(sums);
}

template <class V>
double run_multiply_adds(std::int64_t rounds) {
  using T = typename V::Scalar;
  // Both keep every chain at 0.1: no infinity and no denormal.
  const typename V::Vec factor = V::set(T(0.999)), term = V::set(T(1e-4));
  return run_chains<V>(
      rounds, [&](typename V::Vec sum)
                  __attribute__((always_inline)) { return V::fma(sum, factor, term); });
}

template <class V>
double run_pairs(std::int64_t rounds) {
  const typename V::Int left = typename V::Int{} + 0x3c003c00, right = left + 1;
  return run_chains<V>(
      rounds, [&](typename V::Vec sum)
                  __attribute__((always_inline)) { return V::dot(sum, left, right); });
}

template <class V>
double read_floats(const float* data, std::int64_t turns) {
  using Words = typename V::Unsigned;
  constexpr std::int64_t kTurn = std::int64_t{kChains<V>} * V::kLanes;
  static_assert(kReadFloats % kTurn == 0);
  Words sums[kChainRows<V>][kChainVectors] = {};
  for (const float* const end = data + turns * kReadFloats; data < end; data += kTurn) {
    REGARD_UNROLL for (int i = 0; i < kChainRows<V>; ++i) {
      REGARD_UNROLL for (int j = 0; j < kChainVectors; ++j) {
        sums[i][j] += V::to_unsigned(V::load(data + (i * kChainVectors + j) * V::kLanes));
      }
    }
  }
  return sum_of<V>(sums);
}

template <class V>
constexpr ArithmeticLoop kMultiplyAdds{run_multiply_adds<V>,
                                       std::int64_t{2} * kChains<V>* V::kLanes};

/// Two products a lane.
template <class V>
constexpr ArithmeticLoop kPairs{run_pairs<V>, std::int64_t{4} * kChains<V>* V::kLanes};

}  // namespace regard::cpu

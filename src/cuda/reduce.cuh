#pragma once

#include "cuda/rows.cuh"

namespace regard::cuda {

/// op over the values of all threads of the block, for all of them; one order. `shared` has kThreads
/// elements, which are free again when this returns.
template <class Block, class Shared, class T, class Op>
REGARD_DEVICE_FN T reduce_block(const Block& block, Shared shared, T value, Op op) {
  const int thread = block.thread();
  shared[thread] = value;
  block.sync();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      const T mine = shared[thread], other = shared[thread + half];
      shared[thread] = op(mine, other);
    }
    block.sync();
  }
  const T result = shared[0];
  block.sync();
  return result;
}

/// Their sum.
template <class Block, class Shared, class T>
REGARD_DEVICE_FN T sum_block(const Block& block, Shared shared, T value) {
  return reduce_block(block, shared, value, [](T a, T b) { return a + b; });
}

}  // namespace regard::cuda

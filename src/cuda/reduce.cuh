#pragma once

#include "cuda/rows.cuh"

namespace regard::cuda {

inline constexpr int kWarps = kThreads / kWarp;

/// op over the values of the warp's lanes, for all of them; one order.
template <class Block, class T, class Op>
REGARD_DEVICE_FN T reduce_warp(const Block& block, T value, Op op) {
  REGARD_DEVICE_UNROLL
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = op(value, block.shuffle_xor(value, lanes));
  }
  return value;
}

template <class Block, class T>
REGARD_DEVICE_FN T sum_warp(const Block& block, T value) {
  return reduce_warp(block, value, [](T a, T b) { return a + b; });
}

/// The same over the block's threads. `shared` has kWarps elements, which are free again when this
/// returns.
template <class Block, class Shared, class T, class Op>
REGARD_DEVICE_FN T reduce_block(const Block& block, Shared shared, T value, Op op) {
  value = reduce_warp(block, value, op);
  if (block.thread() % kWarp == 0) shared[block.thread() / kWarp] = value;
  block.sync();
  value = shared[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    const T other = shared[warp];
    value = op(value, other);
  }
  block.sync();
  return value;
}

template <class Block, class Shared, class T>
REGARD_DEVICE_FN T sum_block(const Block& block, Shared shared, T value) {
  return reduce_block(block, shared, value, [](T a, T b) { return a + b; });
}

}  // namespace regard::cuda

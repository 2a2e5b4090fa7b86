#pragma once

#include <cstdint>

#include "cuda/element.cuh"
#include "cuda/reduce.cuh"
#include "problem/codes.h"

// A row on its way to a cache: multiplied by the Walsh-Hadamard matrix, and quantised. All threads
// of a block work on one row of one head.

namespace regard::cuda {

/// A number as a tensor of floats holds it.
REGARD_DEVICE_FN float rounded_to(Element type, float x) {
  switch (type) {
    case Element::kBf16: return problem::from_bf16(problem::to_bf16(x));
    case Element::kF16: return problem::from_f16(problem::to_f16(x));
    case Element::kF8E4M3: return problem::from_f8e4m3(problem::to_f8e4m3(x));
    case Element::kF8E5M2: return problem::from_f8e5m2(problem::to_f8e5m2(x));
    default: return x;
  }
}

/// `columns` numbers, a power of two, times the matrix, to `to` in shared memory: sums and
/// differences of numbers 1, 2, 4, ... apart, then a factor, each rounded, and rounded to `type`.
/// Begins and ends with a barrier. number(d) is called once for each d.
template <class Block, class Number, class Shared>
REGARD_DEVICE_FN void multiply_hadamard(const Block& block, Element type, int columns, float unit,
                                        Number number, Shared to) {
  block.sync();  // the row before has been read
  for (int d = block.thread(); d < columns; d += kThreads) to[d] = number(d);
  for (int step = 1; step < columns; step *= 2) {
    block.sync();
    for (int n = block.thread(); n < columns / 2; n += kThreads) {
      const int d = 2 * n - n % step;
      const float a = to[d], b = to[d + step];
      to[d] = a + b;
      to[d + step] = a - b;
    }
  }
  block.sync();
  for (int d = block.thread(); d < columns; d += kThreads) {
    const float sum = to[d];
    to[d] = rounded_to(type, sum * unit);
  }
  block.sync();
}

/// Where the codes of a row go, and what they are multiplied by.
struct Codes {
  Element type;
  char* to;
  float* scales;      // null: 1; of u4 a scale and a minimum for each group
  bool brings_scale;  // else it is given
};

/// Codes 0 to 15 of each group, from its least number to its greatest, in f64: the difference of
/// two numbers of f32 neither overflows nor loses what decides a code. A warp has a group.
template <class Block, class Number>
REGARD_DEVICE_FN void write_groups(const Block& block, const Codes& codes, std::int64_t columns,
                                   Number number) {
  static_assert(problem::kGroup == kWarp);
  const int lane = block.thread() % kWarp;
  const std::int64_t groups = (columns + kWarp - 1) / kWarp;
  for (std::int64_t g = block.thread() / kWarp; g < groups; g += kWarps) {
    const std::int64_t d = g * kWarp + lane;
    const float own = number(d < columns ? d : columns - 1);  // of the same group
    const float min = reduce_warp(block, own, [](float a, float b) { return b < a ? b : a; });
    const float max = reduce_warp(block, own, [](float a, float b) { return b > a ? b : a; });
    const double range = static_cast<double>(max) - static_cast<double>(min);
    const float scale =
        problem::normal_scale(static_cast<float>(range / static_cast<double>(problem::kMaxU4)));
    const double quotient = (static_cast<double>(own) - static_cast<double>(min)) / scale;
    const auto code = static_cast<float>(quotient);
    const float next = block.shuffle_xor(code, 1);
    if (lane % 2 == 0 && d < columns) {
      std::uint8_t pair = 0;
      problem::put_u4(&pair, 0, code);
      problem::put_u4(&pair, 1, next);
      reinterpret_cast<std::uint8_t*>(codes.to)[d / 2] = pair;
    }
    if (lane != 0) continue;
    codes.scales[2 * g] = scale;
    codes.scales[2 * g + 1] = min;
  }
}

/// Each quotient is rounded to f32, then to the nearest code; what lies beyond the greatest becomes
/// that. `shared` has kWarps elements.
template <class Block, class Number, class Shared>
REGARD_DEVICE_FN void write_codes(const Block& block, const Codes& codes, std::int64_t columns,
                                  Number number, Shared shared) {
  if (codes.type == Element::kU4) return write_groups(block, codes, columns, number);
  float scale = 1.0f;
  if (codes.brings_scale) {
    float max = 0.0f;
    for (std::int64_t d = block.thread(); d < columns; d += kThreads) {
      const float magnitude = __builtin_fabsf(number(d));
      max = magnitude > max ? magnitude : max;
    }
    max = reduce_block(block, shared, max, [](float a, float b) { return b > a ? b : a; });
    scale = problem::normal_scale(max / problem::max_code(codes.type));
    if (block.thread() == 0) *codes.scales = scale;
  } else if (codes.scales != nullptr) {
    scale = *codes.scales;
  }
  for (std::int64_t d = block.thread(); d < columns; d += kThreads) {
    const float code = number(d) / scale;
    if (codes.type == Element::kI8) {
      reinterpret_cast<std::int8_t*>(codes.to)[d] = problem::to_i8(code);
    } else {
      store_element(codes.type, codes.to, d, code);
    }
  }
}

}  // namespace regard::cuda
